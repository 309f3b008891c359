import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.core.observability.lifeline import await_announcement, spawn
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import DeadlineError, PeerError

SERVE = """
import sys, threading
from astraflow.core.observability.lifeline import watch_parent
from astraflow.core.observability.run_directory import RunDirectory
watch_parent()
RunDirectory(sys.argv[1]).announce(sys.argv[2], "http://127.0.0.1:9")
threading.Event().wait()
"""


def serve(run: RunDirectory, name: str) -> list[str]:
    return [sys.executable, "-c", SERVE, str(run.root), name]


def test_a_child_announces_itself_and_stops_in_order(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    child = spawn(serve(run, "a"), run.log("a"))
    found = await_announcement(run, [child], 30.0)
    assert found["a"].pid == child.pid
    assert child.returncode is None
    child.stop()
    assert child.returncode == -signal.SIGTERM
    assert child.ending == "killed by SIGTERM"


def test_a_stubborn_child_is_killed_after_the_grace(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVE
    child = spawn([sys.executable, "-c", stubborn, str(run.root), "a"], run.log("a"))
    await_announcement(run, [child], 30.0)
    child.stop(grace=0.05)
    assert child.ending == "killed by SIGKILL"


def test_a_child_that_fails_is_shown_with_its_last_lines(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    child = spawn([sys.executable, "-c", "import sys; print('why it failed'); sys.exit(3)"], run.log("a"))
    with pytest.raises(PeerError, match=r"(?s)a \(pid \d+\) ended: exit code 3.*why it failed"):
        await_announcement(run, [child], 30.0)
    child.stop()


def test_the_end_of_a_watched_process_ends_the_wait(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    silent = spawn([sys.executable, "-c", "import threading; threading.Event().wait()"], run.log("silent"))
    other = spawn([sys.executable, "-c", "raise SystemExit(4)"], run.log("other"))
    with pytest.raises(PeerError, match="other"):
        await_announcement(run, [silent], 30.0, watched=[silent, other])
    for child in (silent, other):
        child.stop()


def test_a_silent_child_is_named_at_the_deadline(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    child = spawn([sys.executable, "-c", "import threading; threading.Event().wait()"], run.log("a"))
    with pytest.raises(DeadlineError, match="for a to listen"):
        await_announcement(run, [child], 0.05)
    child.stop()


def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="cannot start a"):
        spawn([str(tmp_path / "nothing")], tmp_path / "a.log")


def test_a_process_started_by_hand_does_not_watch() -> None:
    code = "from astraflow.core.observability.lifeline import watch_parent; watch_parent(); print('alive')"
    environment = {name: value for name, value in os.environ.items() if name != "ASTRAFLOW_LIFELINE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert done.stdout == "alive\n"


def test_long_log_lines_do_not_bury_why_a_process_died(tmp_path: Path) -> None:
    program = "print('it failed', 'x' * 10**5, 'of this'); print('the reason'); raise SystemExit(3)"
    child = spawn([sys.executable, "-c", program], tmp_path / "a.log")
    child.wait(30)
    child.stop()
    said = str(child.died())
    assert len(said) < 1000
    assert "it failed x" in said
    assert said.endswith("x of this\n  the reason")
