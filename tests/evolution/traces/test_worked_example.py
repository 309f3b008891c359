"""Every command of docs/evolution/traj-opt.md in a bash block runs, in order, in a copy of what it names."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.evolution.traces.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "evolution" / "traj-opt.md"


def test_the_page_runs(tmp_path: Path) -> None:
    for name in ("traj_opt", "skill-bank"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("output", "__pycache__"))
    (tmp_path / "astraflow").symlink_to(REPOSITORY / "astraflow")
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    shims = (
        f'python() {{ "{sys.executable}" "$@"; }}\ntraj() {{ python -m astraflow.evolution.traces.cli.main "$@"; }}\n'
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment.pop("TRAJ_OPT_OUTPUT", None)
    script = "set -euo pipefail\n" + shims + "".join(blocks)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    output = tmp_path / "traj_opt" / "output"
    assert (output / "rllm" / "raw" / "demo" / "events.jsonl").exists()
    assert (output / "meta" / "raw" / "practice-transcript" / "events.jsonl").exists()
    assert "call `normalise`" in done.stdout
    page = PAGE.read_text("utf-8")
    for line in done.stdout.splitlines():
        if line.startswith("round ") and "score" in line:
            assert line in page  # the figures on the page are those that one gets
    assert re.search(r"give-up-early-\w+ rejected: effect -", done.stdout)
