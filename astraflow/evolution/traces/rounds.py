"""Two processes meet in rounds/round_<n>/: one trains (an agent works), the other optimises skills.

    trainer    ──  training_complete | training_failed  ──►  status.json
    optimizer  ──  optimization_complete                ──►  status.json
    whoever works beats heartbeat.json

Invariants: status.json, once there, always parses and is one whole status, whatever is killed when; a round's status
only goes forward, and rounds are ordered by number. So a process that starts again finds its place from the files.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path

import msgspec

from astraflow.errors import DataError
from astraflow.evolution.traces.files import write_whole
from astraflow.evolution.traces.payload import now

BEAT_EVERY = 2.0
STALE_AFTER = 60.0
POLL_EVERY = 0.1
_FOLDER = re.compile(r"round_(\d{1,9})")


class RoundStatus(StrEnum):
    """Where a round stands; a round without a status is being trained."""

    TRAINING_COMPLETE = "training_complete"
    TRAINING_FAILED = "training_failed"
    """For good unless `will_retry` says that another attempt follows."""
    OPTIMIZATION_COMPLETE = "optimization_complete"


class WaitResult(IntEnum):
    """How a wait ended; the waiter's exit code."""

    COMPLETE = 0
    FAILED = 1
    TIMED_OUT = 2
    """The deadline passed, or the other side's heartbeat stopped."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The content of status.json."""

    schema_version: int = 1
    round: int
    status: RoundStatus
    attempt: int = 1
    will_retry: bool = False
    time: str
    detail: str = ""


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The content of heartbeat.json."""

    role: str
    pid: int
    time: float
    """Seconds since the epoch."""


class Rounds:
    """The rounds folder of an output folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, number: int) -> Path:
        return self.folder / f"round_{number}"

    def numbers(self) -> list[int]:
        """Every round that has begun, in order of number (9 before 10)."""
        if not self.folder.is_dir():
            return []
        matches = (_FOLDER.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted({int(match[1]) for match in matches if match})

    def begin(self, number: int) -> None:
        self.path(number).mkdir(parents=True, exist_ok=True)

    def status(self, number: int) -> Status | None:
        """A round's status, None before there is one; DataError where the file is not one."""
        path = self.path(number) / "status.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Status)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise DataError(f"{path}: {error}") from error

    def set_status(
        self,
        number: int,
        status: RoundStatus,
        *,
        attempt: int | None = None,
        will_retry: bool = False,
        detail: str = "",
    ) -> Status:
        """Write a status (of the attempt that was noted last, if None); DataError where it would lead a round back."""
        current = self.status(number)
        attempt = attempt or (current.attempt if current else 1)
        if current and not _may_follow(current, status):
            raise DataError(f"round {number} is {current.status.value}: it cannot become {status.value}")
        new = Status(
            round=number, status=status, attempt=attempt, will_retry=will_retry, time=now(), detail=detail[:2000]
        )
        write_whole(self.path(number) / "status.json", msgspec.json.format(msgspec.json.encode(new)) + b"\n")
        return new

    def beat(self, number: int, role: str, clock: Callable[[], float] = time.time) -> None:
        content = Beat(role=role, pid=os.getpid(), time=clock())
        write_whole(self.path(number) / "heartbeat.json", msgspec.json.encode(content) + b"\n")

    def last_beat(self, number: int) -> Beat | None:
        try:
            return msgspec.json.decode((self.path(number) / "heartbeat.json").read_bytes(), type=Beat)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    @contextmanager
    def beating(self, number: int, role: str, every: float = BEAT_EVERY) -> Iterator[None]:
        """Beat from a thread while the block works."""
        self.begin(number)
        self.beat(number, role)
        done = threading.Event()

        def run() -> None:
            while not done.wait(every):
                self.beat(number, role)

        thread = threading.Thread(target=run, name=f"heartbeat-{role}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def wait(
        self,
        number: int,
        wanted: Collection[RoundStatus],
        *,
        timeout: float,
        stale_after: float = STALE_AFTER,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> WaitResult:
        """Wait until a round has one of the wanted statuses, or has failed for good.

        TIMED_OUT after `timeout` seconds, or where the round's heartbeat (before the first one, this wait) is older
        than `stale_after` seconds.
        """
        start = clock()
        while True:
            status = self.status(number)
            if status and status.status in wanted:
                return WaitResult.COMPLETE
            if status and status.status is RoundStatus.TRAINING_FAILED and not status.will_retry:
                return WaitResult.FAILED
            beat = self.last_beat(number)
            alive = max(beat.time, start) if beat else start
            if clock() - start >= timeout or clock() - alive >= stale_after:
                return WaitResult.TIMED_OUT
            sleep(POLL_EVERY)


def _may_follow(current: Status, new: RoundStatus) -> bool:
    """Forward only; a step may be repeated, since a process that was killed after it does it again."""
    order = {
        RoundStatus.TRAINING_FAILED: 0,
        RoundStatus.TRAINING_COMPLETE: 1,
        RoundStatus.OPTIMIZATION_COMPLETE: 2,
    }
    if current.status is RoundStatus.TRAINING_FAILED and new is RoundStatus.OPTIMIZATION_COMPLETE:
        return False
    return order[new] >= order[current.status]
