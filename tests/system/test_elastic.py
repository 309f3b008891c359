"""The demonstration of examples/elastic, with short windows, and a run whose RaaS is killed while others live."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.system


def test_what_the_live_services_can_do_is_what_a_run_gets() -> None:
    # a busy machine may be late by more than the tenth that a quiet one keeps
    command = [sys.executable, str(ROOT / "examples" / "elastic" / "demo.py")]
    done = subprocess.run(
        [*command, "--window", "3", "--settle", "2", "--tolerance", "0.4"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"episodes/s of", done.stdout)) == 4


def test_a_killed_raas_among_several_does_not_end_the_run(
    launch: Callable[..., subprocess.Popen[str]],
    follow: Callable[[subprocess.Popen[str], str], list[str]],
    small_run: tuple[str, ...],
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    process = launch(
        run,
        *small_run,
        "raas.instances=2",
        "trainer_base.total_train_steps=12",
        "trainer_base.evaluator.freq_steps=null",
    )
    said = follow(process, "step 3/")
    announced = RunDirectory(run, create=False).endpoint("raas-0")
    assert announced is not None
    os.kill(announced.pid, signal.SIGKILL)
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 0, "".join(said) + rest
    assert "raas-0: killed by SIGKILL; raas-1 goes on" in rest
