"""status.json is whole at every moment, goes forward only, and a waiter says how its wait ended."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest

from astraflow.errors import DataError
from astraflow.evolution.traces.rounds import Rounds, RoundStatus, Status, WaitResult

COMPLETE = [RoundStatus.TRAINING_COMPLETE]


@pytest.fixture
def rounds(tmp_path: Path) -> Rounds:
    return Rounds(tmp_path / "rounds")


def test_rounds_order_by_number(rounds: Rounds) -> None:
    for number in (10, 9, 2, 1):
        rounds.begin(number)
    (rounds.folder / "round_x").mkdir()
    assert rounds.numbers() == [1, 2, 9, 10]


def test_a_status_goes_forward_only(rounds: Rounds) -> None:
    assert rounds.status(1) is None
    rounds.set_status(1, RoundStatus.TRAINING_FAILED, will_retry=True, detail="boom")
    with pytest.raises(DataError, match="cannot become"):
        rounds.set_status(1, RoundStatus.OPTIMIZATION_COMPLETE)
    rounds.set_status(1, RoundStatus.TRAINING_COMPLETE, attempt=2)
    rounds.set_status(1, RoundStatus.TRAINING_COMPLETE, attempt=2)
    rounds.set_status(1, RoundStatus.OPTIMIZATION_COMPLETE)
    with pytest.raises(DataError, match="cannot become"):
        rounds.set_status(1, RoundStatus.TRAINING_COMPLETE)
    assert rounds.status(1).status is RoundStatus.OPTIMIZATION_COMPLETE


class Clock:
    """Time that passes by waiting only, with things that happen at a moment."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.at: dict[float, object] = {}

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        for moment in [moment for moment in self.at if moment <= self.time]:
            self.at.pop(moment)()  # type: ignore[operator]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def wait(rounds: Rounds, clock: Clock, timeout: float = 100.0, stale_after: float = 10.0) -> WaitResult:
    return rounds.wait(1, COMPLETE, timeout=timeout, stale_after=stale_after, clock=clock, sleep=clock.sleep)


def test_a_wait_ends_when_the_status_comes(rounds: Rounds, clock: Clock) -> None:
    clock.at[1003.0] = lambda: rounds.set_status(1, RoundStatus.TRAINING_COMPLETE)
    assert wait(rounds, clock) is WaitResult.COMPLETE
    assert clock.time == pytest.approx(1003.0, abs=0.2)
    assert wait(rounds, clock, timeout=0) is WaitResult.COMPLETE


def test_a_failed_training_ends_a_wait_unless_it_is_tried_again(rounds: Rounds, clock: Clock) -> None:
    rounds.set_status(1, RoundStatus.TRAINING_FAILED, will_retry=True)
    clock.at[1002.0] = lambda: rounds.set_status(1, RoundStatus.TRAINING_FAILED, attempt=2)
    assert wait(rounds, clock) is WaitResult.FAILED
    assert clock.time == pytest.approx(1002.0, abs=0.2)


def test_a_wait_without_a_heartbeat_times_out(rounds: Rounds, clock: Clock) -> None:
    assert wait(rounds, clock) is WaitResult.TIMED_OUT
    assert clock.time == pytest.approx(1010.0, abs=0.2)


def test_a_heartbeat_keeps_a_wait_up_to_its_deadline(rounds: Rounds, clock: Clock) -> None:
    for moment in range(1005, 1200, 5):
        clock.at[float(moment)] = lambda: rounds.beat(1, "trainer", clock)
    assert wait(rounds, clock, timeout=60.0) is WaitResult.TIMED_OUT
    assert clock.time == pytest.approx(1060.0, abs=0.2)


def test_a_stopped_heartbeat_ends_a_wait(rounds: Rounds, clock: Clock) -> None:
    clock.at[1005.0] = lambda: rounds.beat(1, "trainer", clock)
    assert wait(rounds, clock, timeout=1000.0) is WaitResult.TIMED_OUT
    assert clock.time == pytest.approx(1015.0, abs=0.3)


def test_an_old_heartbeat_does_not_end_a_wait_before_it_began(rounds: Rounds, clock: Clock) -> None:
    rounds.begin(1)
    rounds.beat(1, "trainer", lambda: 1.0)  # the process that died is being restarted
    clock.at[1008.0] = lambda: rounds.set_status(1, RoundStatus.TRAINING_COMPLETE)
    assert wait(rounds, clock) is WaitResult.COMPLETE


def test_beating_says_who_works(rounds: Rounds) -> None:
    with rounds.beating(3, "optimizer"):
        beat = rounds.last_beat(3)
    assert beat is not None
    assert (beat.role, beat.pid) == ("optimizer", os.getpid())


WRITER = """
import sys
from pathlib import Path
from astraflow.evolution.traces.rounds import Rounds, RoundStatus
rounds = Rounds(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    rounds.set_status(1, RoundStatus.TRAINING_COMPLETE, detail="x" * 2000)
    rounds.beat(1, "trainer")
"""


def killed_writers(folder: Path) -> Iterator[None]:
    """Let a process write as fast as it can, and kill it at another moment each time."""
    for reads in count(1, 37):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(reads):
            (folder / "round_1" / "status.json").exists()
        process.kill()
        process.wait()
        process.stdout.close()
        yield


def test_the_status_always_parses_whatever_is_killed_when(rounds: Rounds) -> None:
    rounds.set_status(1, RoundStatus.TRAINING_COMPLETE)
    path = rounds.path(1) / "status.json"
    for _, _ in zip(range(12), killed_writers(rounds.folder), strict=False):
        assert msgspec.json.decode(path.read_bytes(), type=Status).status is RoundStatus.TRAINING_COMPLETE


def test_the_status_parses_while_it_is_written(rounds: Rounds) -> None:
    rounds.set_status(1, RoundStatus.TRAINING_COMPLETE)
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(rounds.folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    details = set()
    for _ in range(2000):
        details.add(len(rounds.status(1).detail))
    process.kill()
    process.wait()
    process.stdout.close()
    assert details <= {0, 2000}
