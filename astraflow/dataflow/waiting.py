"""Invariant 8, deadlines: every wait has an owner and a deadline, and can say for what and since when (LAW 24)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from astraflow.errors import DeadlineError

T = TypeVar("T")


class Pulse:
    """Wakes all who wait now. Who looks and then waits without another await between cannot miss one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        await self._event.wait()


@dataclass(frozen=True, eq=False)
class Wait:
    """Somebody waits."""

    who: str
    on: Callable[[], str]
    """What for, as things stand when asked."""
    since: float
    """Unix time."""


class Waits:
    """All waits of the service, for /status and for the text of a missed deadline."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._waits: list[Wait] = []

    @contextmanager
    def enter(self, who: str, on: Callable[[], str]) -> Iterator[Wait]:
        """Note that `who` waits while the block runs."""
        wait = Wait(who, on, self._clock())
        self._waits.append(wait)
        try:
            yield wait
        finally:
            self._waits.remove(wait)

    async def until(self, who: str, on: Callable[[], str], timeout: float, work: Awaitable[T]) -> T:
        """Await `work`; DeadlineError, saying who waited on what since when, after `timeout` seconds."""
        with self.enter(who, on) as wait:
            try:
                async with asyncio.timeout(timeout):
                    return await work
            except TimeoutError as error:
                began = time.strftime("%H:%M:%S", time.localtime(wait.since))
                raise DeadlineError(f"{who} waited {timeout:g} s, since {began}, on {on()}") from error

    def describe(self) -> list[dict[str, Any]]:
        """[{who, on, since}], the longest wait first."""
        return [{"who": wait.who, "on": wait.on(), "since": wait.since} for wait in self._waits]
