"""A call between programs of a world. It takes time, may find nobody, and may never be answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from astraflow.dataflow.simulation.choices import Choices
from astraflow.errors import DeadlineError, PeerError

T = TypeVar("T")

UNANSWERED_S = 5.0
"""How long a caller waits for a peer that cannot be reached."""


class Program(Protocol):
    """Somebody who can be called."""

    dead: bool
    silent: bool
    """Messages from and to it are lost."""
    leaving: bool


P = TypeVar("P", bound=Program)


class Network:
    """Carries all messages; each takes one of a few delays."""

    def __init__(self, choices: Choices, delays_s: tuple[float, ...]) -> None:
        self._choices = choices
        self._delays_s = delays_s
        self.messages = 0
        self.breaking = False

    def breaks(self) -> bool:
        """Does the connection of this call break before it is answered?"""
        return self.breaking and self._choices.pick(2) == 1

    async def hop(self) -> None:
        """One message on its way."""
        self.messages += 1
        delays = self._delays_s
        await asyncio.sleep(delays[self._choices.pick(len(delays)) if len(delays) > 1 else 0])

    async def call(self, peer: P | None, work: Callable[[P], Awaitable[T]], caller: Program | None = None) -> T:
        """Have a peer do something. PeerError where it is dead, or dies meanwhile; DeadlineError where it is silent."""
        await self.hop()
        if peer is None or peer.dead:
            raise PeerError("nobody listens")
        await self._reachable(peer, caller)
        result = await work(peer)
        if peer.dead:
            raise PeerError("it died before it answered")
        await self._reachable(peer, caller)
        if self.breaks():
            raise PeerError("the connection broke")
        await self.hop()
        return result

    async def _reachable(self, *programs: Program | None) -> None:
        if any(program is not None and program.silent for program in programs):
            await asyncio.sleep(UNANSWERED_S)
            raise DeadlineError(f"no answer within {UNANSWERED_S:g} s")
