"""Two policies, one workflow, real processes: each has a trainer, versions, batches and metrics of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.sinks.jsonl import JsonlReader
from astraflow.dataflow.audit import audit
from astraflow.dataflow.records import Announced
from astraflow.dataflow.store import read_log

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 3

pytestmark = pytest.mark.system


def command_of(run: Path, steps: int, small_run: tuple[str, ...], *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "astraflow.cli.main",
        "run",
        str(EXAMPLES / "quickstart.yaml"),
        str(EXAMPLES / "two-policies.yaml"),
        *small_run,
        f"experiment.fileroot={run}",
        f"trainer_base.total_train_steps={steps}",
        "trainer_base.evaluator.eval_at_start=false",
        *more,
    ]


def environment() -> dict[str, str]:
    path = f"{EXAMPLES}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": path}


def test_the_death_of_one_trainer_for_good_holds_up_the_other_no_longer_than_it_takes_to_say_so(
    small_run: tuple[str, ...], tmp_path: Path
) -> None:
    run, steps = tmp_path / "run", 8
    command = command_of(run, steps, small_run, "trainer_base.recover.mode=disabled")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as process:
        run_dir = RunDirectory(run)
        deadline = time.monotonic() + 120
        while not (run_dir.metrics_of("checker").exists() and JsonlReader(run_dir.metrics_of("checker")).read()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        victim = run_dir.endpoint("train_worker-checker")
        assert victim is not None
        os.kill(victim.pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "train_worker-checker: killed by SIGKILL; train_worker-model0 goes on" in said
    assert [record["step"] for record in JsonlReader(run_dir.metrics).read()][-1] == steps
    assert "the trainer of checker is absent (it has ended" in run_dir.log("dataflow").read_text()
    report = audit(run_dir.ledger)
    assert report.conserved, report.problems


def test_two_policies_are_trained_together(small_run: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = command_of(
        run, STEPS, small_run, "+trainer_base.actor.entropy_coef=0.01", "dataflow.ledger.replayable=true"
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    run_dir = RunDirectory(run, create=False)
    for metrics, summary in (
        (run_dir.metrics, run_dir.summary),
        (run_dir.metrics_of("checker"), run_dir.summary_of("checker")),
    ):
        steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
        assert [step for step in steps if step] == list(range(1, STEPS + 1))
        assert json.loads(summary.read_text())["rl_steps"] == STEPS
    report = audit(run_dir.ledger)
    assert report.conserved, report.problems
    announced = [record for record in read_log(run_dir.ledger) if isinstance(record, Announced)]
    for model_id in ("model0", "checker"):
        assert [a.version for a in announced if a.model_id == model_id] == list(range(STEPS + 1))
    assert len({a.digest for a in announced if a.version == STEPS}) == 2
    files = run_dir.trajectories.glob("step_*.jsonl")
    kept = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {line["model_id"] for line in kept} == {"model0", "checker"}
    again = subprocess.run(
        [sys.executable, "-m", "astraflow.cli.main", "replay", str(run)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"{2 * STEPS} batches derived again" in again.stdout
