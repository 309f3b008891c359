"""LAW 28, version barrier: with several models a step's notifications leave together.

Members are the registered models and nobody else: a bad request adds none. A round opens with the first arrival and
is over when every member has arrived or when its deadline has passed; who is missing then is named, and later rounds
do not wait for it until it arrives again. Nor does a round wait for members that get no batch before it is over: where
nothing runs, and the bound of one that has arrived lets nothing start. With one model every arrival is a round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from astraflow.dataflow.waiting import Pulse, Waits
from astraflow.errors import AstraFlowError, InvariantError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Round:
    """A finished round."""

    number: int
    arrived: tuple[str, ...]
    laggards: tuple[str, ...] = ()
    """Members that the deadline passed over."""


@dataclass
class VersionBarrier:
    """State of the barrier; time comes in with each call."""

    deadline_s: float
    _members: set[str] = field(default_factory=set)
    _absent: set[str] = field(default_factory=set)
    _arrived: set[str] = field(default_factory=set)
    _opened: float | None = None
    _number: int = 0

    @property
    def number(self) -> int:
        """The open round: an arrival is released once this has grown."""
        return self._number

    @property
    def deadline(self) -> float | None:
        """When the open round ends at the latest; None where nobody waits."""
        return None if self._opened is None else self._opened + self.deadline_s

    def join(self, model_id: str) -> None:
        """A model's trainer registered."""
        self._members.add(model_id)

    def leave(self, model_id: str, now: float) -> Round | None:
        """A model is no longer trained; its leaving can complete the open round."""
        self._members.discard(model_id)
        self._absent.discard(model_id)
        self._arrived.discard(model_id)
        if not self._arrived:
            # whoever opened the round has left: nobody waits in it
            self._opened = None
        return self.poll(now)

    def excuse(self, model_id: str, now: float) -> Round | None:
        """Do not wait for a member until it arrives again; that can complete the open round."""
        if model_id in self._members and model_id not in self._arrived:
            self._absent.add(model_id)
        return self.poll(now)

    def in_vain(self, starved: Collection[str], full: Collection[str]) -> set[str]:
        """Whom the open round waits for though they cannot arrive before it is over, while no group runs.

        starved: models whose trainers lack groups for a batch; full: those whose bound lets nothing start.
        """
        awaited = self.awaited()
        locked = bool(full) and self._arrived.issuperset(full) and awaited.issubset(starved)
        return awaited if locked else set()

    def arrive(self, model_id: str, now: float) -> Round | None:
        """A member announces a version; returns the round where that completes it."""
        if model_id not in self._members:
            raise InvariantError(f"'{model_id}' arrives at the version barrier but is not registered")
        self._absent.discard(model_id)
        self._arrived.add(model_id)
        if self._opened is None:
            self._opened = now
        return self.poll(now)

    def poll(self, now: float) -> Round | None:
        """End the open round if all that are waited for have arrived, or if its deadline has passed."""
        deadline = self.deadline
        if deadline is None:
            return None
        laggards = self.awaited()
        if laggards and now < deadline:
            return None
        self._absent |= laggards
        done = Round(self._number, tuple(sorted(self._arrived)), tuple(sorted(laggards)))
        self._arrived, self._opened = set(), None
        self._number += 1
        return done

    def awaited(self) -> set[str]:
        """The members that the open round waits for."""
        return self._members - self._absent - self._arrived

    @property
    def absent(self) -> tuple[str, ...]:
        """Members that missed a deadline and have not arrived since."""
        return tuple(sorted(self._absent))

    def validate(self) -> None:
        """Raise InvariantError unless only members are known and an open round waits for somebody."""
        if not (self._arrived | self._absent) <= self._members or self._arrived & self._absent:
            raise InvariantError("the version barrier knows a model that is not a member")
        if (self._opened is None) != (not self._arrived):
            raise InvariantError("the version barrier's round is open without an arrival, or closed with one")


class Announcements:
    """The shell: a trainer's notification waits here for the other models'.

    wait    waits for `changed`; unblocked by the last arrival or by the round's deadline
    """

    def __init__(
        self, deadline_s: float, waits: Waits, clock: Callable[[], float], *, independent: bool = False
    ) -> None:
        """independent: nobody waits for anybody."""
        self.barrier = VersionBarrier(deadline_s)
        self._independent = independent
        self._waits = waits
        self._clock = clock
        self._changed = Pulse()
        self._failure: AstraFlowError | None = None

    def fail(self, error: AstraFlowError) -> None:
        """The run is over: whoever waits is told."""
        self._failure = error
        self._changed.set()

    def published(self) -> None:
        """A version became current."""
        self._changed.set()

    async def changed(self) -> None:
        """Return when a version is current, a round has ended, a trainer is absent; raises why if the run is over."""
        if self._failure is not None:
            raise self._failure
        await self._changed.wait()

    def excuse(self, model_id: str) -> None:
        """A model's trainer is absent: whoever waits only for it goes on."""
        self.barrier.excuse(model_id, self._clock())
        self._changed.set()

    def release(self, starved: Collection[str], full: Collection[str]) -> None:
        """Nothing runs: whoever waits for a trainer that waits for groups which its own bound holds back goes on."""
        for model_id in sorted(self.barrier.in_vain(starved, full)):
            log.info("%s go on without a version of %s, which lacks groups", ", ".join(sorted(full)), model_id)
            self.excuse(model_id)

    async def wait(self, model_id: str, version: int) -> None:
        """Arrive, and return when the round is over; a round that its deadline ended names its laggards in the log."""
        barrier = self.barrier
        if self._independent:
            return
        mine = barrier.number
        if barrier.arrive(model_id, self._clock()) is not None:
            self._changed.set()
            return
        who = f"version {version} of {model_id}"
        with self._waits.enter(who, lambda: f"the versions of {', '.join(sorted(barrier.awaited()))}"):
            while barrier.number == mine and (deadline := barrier.deadline) is not None:
                if self._failure is not None:
                    raise self._failure
                try:
                    async with asyncio.timeout(deadline - self._clock()):
                        await self._changed.wait()
                except TimeoutError:
                    self._expire()

    def _expire(self) -> None:
        done = self.barrier.poll(self._clock())
        if done is not None:
            log.warning(
                "no version of %s within %g s: %s go on without it",
                *(", ".join(done.laggards), self.barrier.deadline_s, ", ".join(done.arrived)),
            )
            self._changed.set()
