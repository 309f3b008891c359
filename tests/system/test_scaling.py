"""A real run whose trainer lacks rollouts: by Dataflow's advice the launcher starts a second RaaS, and it serves."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.weight_manager.version_log import served_log

STEPS = 200
SCARCE = (
    f"trainer_base.total_train_steps={STEPS}",
    "trainer_base.evaluator.freq_steps=null",
    "+dataflow.buffer.rollout_wait.mean_s=1",  # what a tool or an environment takes: more services help
    "+dataflow.buffer.rollout_wait.sigma=0.1",
    "+dataflow.pool.advice_window_s=2",
    "+raas.scaling.max_instances=2",
)

pytestmark = pytest.mark.system


def test_a_run_that_lacks_rollouts_gets_a_service_more(
    launch: Callable[..., subprocess.Popen[str]],
    follow: Callable[[subprocess.Popen[str], str], list[str]],
    small_run: tuple[str, ...],
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    with launch(run_dir, *small_run, *SCARCE) as process:
        try:
            follow(process, "1 RaaS more: trainers wait")
            served = served_log(run_dir, "raas-1")
            while not served.exists():
                follow(process, f"/{STEPS} ")
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert RunDirectory(run_dir, create=False).log("raas-1").exists()
    assert "RaaS more" not in rest, "two are the most"
