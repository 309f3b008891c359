"""The demonstration of examples/elastic, in short and whole, every night: what it measures wants a quiet machine."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "elastic" / "demo.py"


def demonstrate(runs: Path, timeout: float, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--runs", str(runs), *options],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    logs = "".join(log.read_text() for log in runs.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert len(re.findall(r"episodes/s of", done.stdout)) == 4
    return done.stdout


@pytest.mark.nightly
@pytest.mark.system
def test_what_the_live_services_can_do_is_what_a_run_gets(tmp_path: Path) -> None:
    # short episodes leave more to the model, and a busy machine may be late
    quick = ("--places", "16", "--window", "2", "--settle", "2", "--tolerance", "0.5", "--undisturbed", "0")
    demonstrate(tmp_path, 180, *quick)
    said = (tmp_path / "disturbed.log").read_text()
    assert re.search("raas-0: killed by SIGKILL; .*slow.* go on", said)
    assert "middle: it has left" in said
    assert "slow: the run has ended" in said
    assert list((tmp_path / "disturbed" / "endpoints").iterdir()) == []


@pytest.mark.nightly
@pytest.mark.system
def test_it_learns_as_well_as_undisturbed_runs(tmp_path: Path) -> None:
    assert ": inside" in demonstrate(tmp_path, 1200)


def test_the_interval_is_of_one_more_run() -> None:
    interval = runpy.run_path(str(DEMO), run_name="demo")["interval"]
    # t(97.5%, 2) = 4.303, s = 0.01
    assert interval([0.94, 0.95, 0.96]) == pytest.approx((0.95 - 0.04969, 0.95 + 0.04969), abs=1e-5)
