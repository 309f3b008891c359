"""Two policies, one workflow, real processes: each has a trainer, versions, batches and metrics of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.audit import audit
from astraflow.dataflow.records import Announced
from astraflow.dataflow.store import read_log

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 3

pytestmark = pytest.mark.system


def test_two_policies_are_trained_together(small_run: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "astraflow.cli.main",
        "run",
        str(EXAMPLES / "quickstart.yaml"),
        str(EXAMPLES / "two-policies.yaml"),
        *small_run,
        f"experiment.fileroot={run}",
        f"trainer_base.total_train_steps={STEPS}",
        "trainer_base.evaluator.eval_at_start=false",
        "+trainer_base.actor.entropy_coef=0.01",
        "dataflow.ledger.replayable=true",
    ]
    path = f"{EXAMPLES}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, "PYTHONPATH": path}
    )
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
