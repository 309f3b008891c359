"""`astraflow simulate` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path


def simulate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astraflow.cli.main", "simulate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


SMALL = ("--raas", 20, "--episodes", 640, "--batch-groups", 16, "--n-samples", 4)


def test_a_small_run_is_printed_and_written(tmp_path: Path) -> None:
    done = simulate(*SMALL, "--policies", 2, "--restarts", "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations: 0" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["trained_groups"] == 2 * 160
    assert written["scenario"]["policies"] == 2


def test_exploring_says_what_was_tried() -> None:
    done = simulate("--explore", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by chance: " in done.stdout
    assert "by plan: " in done.stdout
    assert done.stdout.count("0 violations") == 2


def test_missing_durations_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    done = simulate(*SMALL, "--latencies", tmp_path / "none.txt")
    assert done.returncode == 2
    assert "none.txt" in done.stderr
    assert len(done.stderr.splitlines()) == 1
