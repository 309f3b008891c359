"""The supervisor, with real processes that are small: each is a module that announces itself and does one thing."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from astraflow.core.config import Section
from astraflow.core.observability.run_directory import Announcement, RunDirectory, process_start
from astraflow.errors import PeerError
from astraflow.launch.local import Interrupted, LocalProcesses, interruptible
from astraflow.launch.recovery import Restarts
from astraflow.launch.specs import ProcessSpec

MODULE = """
import json, os, signal, sys, threading
from astraflow.core.observability.lifeline import watch_parent
from astraflow.core.observability.run_directory import RunDirectory

settings = json.load(open(sys.argv[2]))
watch_parent(0.2)

def stop(signum, frame):
    with open(os.path.join(settings["run_dir"], "order"), "a") as file:
        file.write(settings["name"] + "\\n")
    os._exit(0)

if settings["does"] == "fail":
    print("the reason of it all", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN if settings["does"] == "ignore" else stop)
RunDirectory(settings["run_dir"]).announce(settings["name"], "http://127.0.0.1:9")
if settings["does"] == "finish":
    sys.exit(0)
while True:
    threading.Event().wait(10)
"""


class Settings(Section):
    name: str
    does: str
    run_dir: str


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    (tmp_path / "small_process.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return RunDirectory(tmp_path / "run")


def spec(run_dir: RunDirectory, name: str, does: str = "serve", kind: str = "") -> ProcessSpec:
    settings = Settings(name=name, does=does, run_dir=str(run_dir.root))
    return ProcessSpec(name, "small_process", settings, run_dir.settings(name), run_dir.log(name), kind=kind)


def gone(pids: list[int]) -> bool:
    return all(not Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_run_that_ends_well_stops_in_order(run_dir: RunDirectory) -> None:
    with LocalProcesses(run_dir) as processes:
        processes.spawn([spec(run_dir, "dataflow")])
        first = processes.listening(["dataflow"])
        processes.spawn([spec(run_dir, "raas-0")])
        second = processes.listening(["raas-0"])
        processes.spawn([spec(run_dir, "trainer", "finish")])
        ticks: list[int] = []
        processes.watch(["trainer"], lambda: ticks.append(1))
    assert (run_dir.root / "order").read_text().split() == ["raas-0", "dataflow"]
    assert gone([announced.pid for announced in (*first.values(), *second.values())])
    assert list((run_dir.root / "endpoints").iterdir()) == []


def test_a_process_that_dies_is_started_again_as_often_as_allowed(run_dir: RunDirectory) -> None:
    said: list[str] = []
    with LocalProcesses(run_dir, restarts=Restarts(2, said.append)) as processes:
        processes.spawn([spec(run_dir, "raas-0")])
        killed: list[int] = []

        def kill() -> None:
            announced = run_dir.endpoint("raas-0")
            if announced is not None and announced.pid not in killed:
                killed.append(announced.pid)
                os.kill(announced.pid, signal.SIGKILL)

        with pytest.raises(PeerError, match="killed by SIGKILL"):
            processes.watch(["raas-0"], kill)
    assert len(killed) == 3
    assert len(said) == 2
    assert gone(killed)


class EndsBetweenLooks:
    """A trainer that is seen running, and has ended well a moment later."""

    name = "trainer"
    pid = -1
    ending = "exit code 0"

    def __init__(self) -> None:
        self._looks = iter([None])

    @property
    def returncode(self) -> int | None:
        return next(self._looks, 0)


def test_a_process_that_ends_well_between_two_looks_is_no_failure(
    run_dir: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = LocalProcesses(run_dir)
    child = EndsBetweenLooks()
    monkeypatch.setattr(processes, "_children", lambda: [child])
    processes.watch(["trainer"])


def test_a_failure_is_shown_with_its_last_lines_and_stops_the_rest(run_dir: RunDirectory) -> None:
    with (
        pytest.raises(PeerError, match=r"(?s)trainer \(pid \d+\) ended: exit code 3.*the reason of it all"),
        LocalProcesses(run_dir) as processes,
    ):
        processes.spawn([spec(run_dir, "dataflow")])
        pid = processes.listening(["dataflow"])["dataflow"].pid
        processes.spawn([spec(run_dir, "trainer", "fail")])
        processes.watch(["trainer"])
    assert gone([pid])


def test_a_service_that_is_killed_ends_the_run_at_once(run_dir: RunDirectory) -> None:
    with (
        pytest.raises(PeerError, match=r"raas-0 \(pid \d+\) ended: killed by SIGKILL"),
        LocalProcesses(run_dir) as processes,
    ):
        processes.spawn([spec(run_dir, "raas-0"), spec(run_dir, "trainer")])
        found = processes.listening(["raas-0", "trainer"])
        processes.watch(["trainer"], lambda: os.kill(found["raas-0"].pid, signal.SIGKILL))
    assert gone([announced.pid for announced in found.values()])


def test_a_service_that_is_killed_while_it_starts_is_started_again(run_dir: RunDirectory) -> None:
    said: list[str] = []
    with LocalProcesses(run_dir, restarts=Restarts(1, said.append)) as processes:
        processes.spawn([spec(run_dir, "dataflow")])
        [first] = processes._children()
        os.kill(first.pid, signal.SIGKILL)
        second = processes.listening(["dataflow"])["dataflow"].pid
        assert second != first.pid
        assert said == ["dataflow: killed by SIGKILL; started again (1 of 1)"]
        # one that listens already is watched while others start
        os.kill(second, signal.SIGKILL)
        processes.spawn([spec(run_dir, "raas-0")])
        with pytest.raises(PeerError, match=r"dataflow .* killed by SIGKILL"):
            processes.listening(["raas-0"])


def test_a_service_that_fails_while_it_starts_is_not_started_again(run_dir: RunDirectory) -> None:
    said: list[str] = []
    with LocalProcesses(run_dir, restarts=Restarts(3, said.append)) as processes:
        processes.spawn([spec(run_dir, "dataflow", "fail")])
        with pytest.raises(PeerError, match=r"(?s)exit code 3.*the reason of it all"):
            processes.listening(["dataflow"])
    assert said == []


def test_one_of_a_kind_may_die_while_another_lives_and_the_last_one_may_not(run_dir: RunDirectory) -> None:
    said: list[str] = []
    gone: list[str] = []
    with LocalProcesses(run_dir, say=said.append) as processes:
        processes.spawn([spec(run_dir, name, kind="RaaS") for name in ("raas-0", "raas-1")])
        listening = processes.listening(["raas-0", "raas-1"])
        processes.spawn([spec(run_dir, "train_worker")])
        killed: list[str] = []

        def kill_one_after_the_other() -> None:
            name = f"raas-{len(killed)}"
            if len(killed) == 0 or (len(killed) == 1 and not processes.runs("raas-0")):
                os.kill(listening[name].pid, signal.SIGKILL)
                killed.append(name)

        with pytest.raises(PeerError, match="raas-1"):
            processes.watch(["train_worker"], kill_one_after_the_other, gone=gone.append)
    assert said == ["raas-0: killed by SIGKILL; raas-1 goes on"]
    assert gone == ["raas-0"]


def test_a_run_goes_on_with_those_that_joined_until_they_have_left(run_dir: RunDirectory) -> None:
    said: list[str] = []
    looks: list[str] = []

    def joined(kind: str) -> list[str]:
        looks.append(kind)
        return ["raas-0", "far"] if len(looks) < 5 else ["raas-0"]  # Dataflow may not have seen its death yet

    with LocalProcesses(run_dir, say=said.append) as processes:
        processes.spawn([spec(run_dir, "raas-0", kind="RaaS")])
        pid = processes.listening(["raas-0"])["raas-0"].pid
        processes.spawn([spec(run_dir, "train_worker")])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PeerError, match=r"raas-0 .* killed by SIGKILL"):
            processes.watch(["train_worker"], joined=joined)
    assert said == ["raas-0: killed by SIGKILL; far goes on"]
    assert looks == ["RaaS"] * 5


STRANGER = """
import sys, time
from astraflow.core.observability.run_directory import RunDirectory

run = RunDirectory(sys.argv[1])
run.announce("a-raas", "http://127.0.0.1:9")
while run.endpoint("dataflow") is not None:
    time.sleep(0.01)
"""


def test_who_joined_is_left_the_time_to_see_that_the_run_ends(run_dir: RunDirectory) -> None:
    processes = LocalProcesses(run_dir, within=10)
    processes.spawn([spec(run_dir, "dataflow")])
    processes.listening(["dataflow"])
    with subprocess.Popen([sys.executable, "-c", STRANGER, str(run_dir.root)]) as stranger:
        while run_dir.endpoint("a-raas") is None:
            time.sleep(0.01)
        threading.Thread(target=stranger.wait).start()  # as its own parent would, once it has ended
        processes.stop()
        assert stranger.wait(5) == 0, "it was not killed"
    assert list((run_dir.root / "endpoints").iterdir()) == []


def test_a_process_of_another_machine_is_not_taken_for_one_of_this(run_dir: RunDirectory) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as bystander:
        there = Announcement(name="far", url="http://far:1", pid=bystander.pid, host="another machine")
        (run_dir.root / "endpoints" / "far.json").write_bytes(msgspec.json.encode(there))
        LocalProcesses(run_dir, within=0.1).stop()
        assert bystander.poll() is None
        bystander.kill()
    assert run_dir.endpoint("far") is None


def test_who_has_the_pid_of_a_process_that_died_unnoticed_is_left_alone(run_dir: RunDirectory) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as bystander:
        start = process_start(bystander.pid)
        assert start is not None
        for name, started in (("earlier", start - 1), ("nameless", None)):
            left = Announcement(name=name, url="http://127.0.0.1:9", pid=bystander.pid, started=started)
            (run_dir.root / "endpoints" / f"{name}.json").write_bytes(msgspec.json.encode(left))
        LocalProcesses(run_dir, within=0.1).stop()
        assert bystander.poll() is None
        bystander.kill()
    assert list((run_dir.root / "endpoints").iterdir()) == []


def test_who_was_waited_for_and_died_is_named_when_the_others_have_ended(run_dir: RunDirectory) -> None:
    said: list[str] = []
    with LocalProcesses(run_dir, say=said.append) as processes:
        with pytest.raises(PeerError, match="the reason of it all"):
            processes.spawn([spec(run_dir, "a", "fail", "train worker"), spec(run_dir, "b", "serve", "train worker")])

            def end_b() -> None:
                announced = run_dir.endpoint("b")
                if said and announced is not None and processes.runs("b"):
                    os.kill(announced.pid, signal.SIGTERM)

            processes.watch(["a", "b"], end_b)
    assert said == ["a: exit code 3; b goes on"]


def test_a_service_may_not_end_before_the_run_does_even_with_exit_code_0(run_dir: RunDirectory) -> None:
    with pytest.raises(PeerError, match="dataflow"), LocalProcesses(run_dir) as processes:
        processes.spawn([spec(run_dir, "dataflow", "finish"), spec(run_dir, "trainer")])
        processes.watch(["trainer"])


def test_a_process_that_ends_while_others_start_is_the_one_named(run_dir: RunDirectory) -> None:
    with pytest.raises(PeerError, match="the reason of it all"), LocalProcesses(run_dir) as processes:
        processes.spawn([spec(run_dir, "dataflow", "fail")])
        processes.listening(["dataflow"])


def test_what_ignores_the_order_to_stop_is_killed_in_time(run_dir: RunDirectory) -> None:
    processes = LocalProcesses(run_dir, within=0.2)
    processes.spawn([spec(run_dir, "stubborn", "ignore")])
    pid = processes.listening(["stubborn"])["stubborn"].pid
    start = time.monotonic()
    processes.stop()
    assert time.monotonic() - start < 5
    assert gone([pid])


def test_the_stages_of_a_stop_share_one_deadline(run_dir: RunDirectory) -> None:
    """However many are slow; the last one still has its share: what is quick to stop stops in order."""
    processes = LocalProcesses(run_dir, within=2.0)
    processes.spawn([spec(run_dir, "quick")])
    for number in range(4):
        processes.spawn([spec(run_dir, f"stubborn-{number}", "ignore")])
    found = processes.listening([f"stubborn-{number}" for number in range(4)] + ["quick"])
    start = time.monotonic()
    processes.stop()
    assert time.monotonic() - start < 4.0  # 2 s, on a machine that is not shared
    assert (run_dir.root / "order").read_text().split() == ["quick"]
    assert gone([announced.pid for announced in found.values()])


def test_a_hangup_that_is_ignored_stays_so_and_an_interrupt_does_not() -> None:
    """A shell's script has SIGINT ignored by whatever it starts in the background."""
    numbers = (signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        with pytest.raises(Interrupted, match="SIGINT"), interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGINT)
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN, signal.SIG_IGN]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(run_dir: RunDirectory, signum: signal.Signals) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(Interrupted) as caught, interruptible(), LocalProcesses(run_dir) as processes:
        processes.spawn([spec(run_dir, "dataflow")])
        pid = processes.listening(["dataflow"])["dataflow"].pid
        processes.watch(["dataflow"], lambda: os.kill(os.getpid(), signum))
    assert caught.value.exit_code == 128 + signum
    assert gone([pid])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


LAUNCHER = """
import sys, threading
from pathlib import Path
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.launch.local import LocalProcesses
from astraflow.launch.recovery import Restarts
from astraflow.launch.specs import ProcessSpec
from astraflow.core.config import Section

class Settings(Section):
    name: str
    does: str
    run_dir: str

run = RunDirectory(sys.argv[1])
settings = Settings(name="x", does="ignore", run_dir=sys.argv[1])
processes = LocalProcesses(run)
processes.spawn([ProcessSpec("x", "small_process", settings, run.settings("x"), run.log("x"))])
print(processes.listening(["x"])["x"].pid, flush=True)
threading.Event().wait()
"""


def test_nothing_outlives_a_launcher_that_is_killed(run_dir: RunDirectory) -> None:
    """LAW 33: the child ignores SIGTERM, and still its closed lifeline ends it."""
    command = [sys.executable, "-c", LAUNCHER, str(run_dir.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        child = os.pidfd_open(int(launcher.stdout.readline()))
        launcher.kill()
    ended, _, _ = select.select([child], [], [], 20.0)
    os.close(child)
    assert ended, "the child outlived its launcher"
