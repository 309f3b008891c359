"""A real run whose train worker, Dataflow, RaaS and at last launcher are killed -9: it goes on by itself, and the last
time when it is started again, from the older of its two states, as the newest is damaged. Nothing is lost, nothing
trained twice.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.audit import audit

STEPS, GROUPS, KEPT_EVERY = 40, 4, 2
LONG = (
    f"trainer_base.total_train_steps={STEPS}",
    "trainer_base.evaluator.freq_steps=null",
    "trainer_base.recover.mode=auto",
    f"trainer_base.recover.freq_steps={KEPT_EVERY}",
)

pytestmark = pytest.mark.system


def kill(run_dir: Path, name: str) -> None:
    announced = RunDirectory(run_dir, create=False).endpoint(name)
    assert announced is not None
    os.kill(announced.pid, signal.SIGKILL)


def damage_newest_state(run_dir: Path) -> Path:
    """Flip a bit of it, once the trainer has followed its launcher."""
    trainer = RunDirectory(run_dir, create=False).endpoint("train_worker-model0")
    assert trainer is not None
    while trainer.alive:
        time.sleep(0.05)
    state = sorted((run_dir / "recover" / "model0").glob("step_*"))[-1] / "state.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    return state


def test_a_killed_run_goes_on(
    launch: Callable[..., subprocess.Popen[str]],
    follow: Callable[[subprocess.Popen[str], str], list[str]],
    small_run: tuple[str, ...],
    tmp_path: Path,
) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    with launch(run_dir, *small_run, *LONG) as first:
        try:
            for name in ("train_worker-model0", "dataflow", "raas-0"):
                said += follow(first, f"/{STEPS} ")  # it goes on
                kill(run_dir, name)
                said += follow(first, f"{name}: killed by SIGKILL; started again")
            said += follow(first, f"/{STEPS} ")
        finally:
            first.kill()
    damaged = damage_newest_state(run_dir)
    second = launch(run_dir, *small_run, *LONG)
    rest, _ = second.communicate(timeout=120)
    assert second.returncode == 0, "".join(said) + rest
    assert f"the run in {run_dir} goes on" in rest
    assert f"the state in {damaged} is damaged" in RunDirectory(run_dir).log("train_worker-model0").read_text()

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
