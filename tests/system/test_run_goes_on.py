"""A real run whose train worker, Dataflow, RaaS and at last launcher are killed -9: it goes on by itself, and the last
time when it is started again. Nothing is lost, nothing trained twice.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.audit import audit

RECIPE = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
STEPS, GROUPS, KEPT_EVERY = 40, 4, 2
LONG = (
    f"trainer_base.total_train_steps={STEPS}",
    "trainer_base.evaluator.freq_steps=null",
    "trainer_base.recover.mode=auto",
    f"trainer_base.recover.freq_steps={KEPT_EVERY}",
)

pytestmark = pytest.mark.system


def start(run_dir: Path, overrides: tuple[str, ...]) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "astraflow.cli.main",
        "run",
        str(RECIPE),
        f"experiment.fileroot={run_dir}",
        *overrides,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def follow(process: subprocess.Popen[str], words: str, said: list[str]) -> None:
    """Read lines up to the one that holds the words."""
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError(f"'{words}' was never said:\n{''.join(said)}")


def kill(run_dir: Path, name: str) -> None:
    announced = RunDirectory(run_dir, create=False).endpoint(name)
    assert announced is not None
    os.kill(announced.pid, signal.SIGKILL)


def test_a_killed_run_goes_on(small_run: tuple[str, ...], tmp_path: Path) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    with start(run_dir, (*small_run, *LONG)) as first:
        try:
            for name in ("train_worker-model0", "dataflow", "raas-0"):
                follow(first, f"/{STEPS} ", said)  # it goes on
                kill(run_dir, name)
                follow(first, f"{name}: killed by SIGKILL; started again", said)
            follow(first, f"/{STEPS} ", said)
        finally:
            first.kill()
    second = start(run_dir, (*small_run, *LONG))
    rest, _ = second.communicate(timeout=120)
    assert second.returncode == 0, "".join(said) + rest
    assert f"the run in {run_dir} goes on" in rest

    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["rl_steps"] == STEPS
    assert summary["max_trained_staleness"] <= summary["staleness_bound"]
    assert summary["weight_updates"] > STEPS  # numbers went on after each of the two restored trainers
    report = audit(run_dir / "ledger")
    assert report.conserved, report.problems
    assert report.trained == STEPS * GROUPS
    assert report.starts == 3
    assert set(report.dropped) <= {"stale", "invalid"}
    assert (run_dir / "checkpoints" / f"step_{STEPS:06d}").is_dir()
