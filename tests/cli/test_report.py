"""`astraflow report` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

from astraflow.core.observability.run_directory import RunDirectory


def report(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astraflow.cli.main", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def a_run(root: Path, seed: int) -> Path:
    run = RunDirectory(root)
    run.config.write_text(f"experiment: {{experiment_name: e, trial_name: t{seed}, seed: {seed}}}\n")
    run.metrics.write_text(json.dumps({"step": 1, "time": 0.0, "rollout/reward_mean": 0.5}) + "\n")
    return root


def test_one_run_and_several(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / name, seed) for seed, name in enumerate("ab")]
    done = report(runs[0], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{runs[0]}/report.html\n")
    done = report(*runs, "--output", tmp_path / "both.html", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/both.html\n")
    assert "experiment.seed" in (tmp_path / "both.html").read_text()


def test_what_is_no_run_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = report(tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr == f"astraflow: {tmp_path} is not a run directory: it holds neither config.yaml nor metrics.jsonl\n"
    )
