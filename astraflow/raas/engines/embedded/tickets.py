"""Requests in flight and who waits for them. Used in the event loop only.

Invariant: a call joins what is in flight under its rid, unless somebody has ended that: an answer that was cut goes to
those who waited when it was cut, never to who asks afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from astraflow.core.data import ModelResponse
from astraflow.raas.engines.base import Listener, Output
from astraflow.raas.engines.embedded.scheduler import Sequence

Answer = tuple[Sequence, ModelResponse | Exception]


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in flight, its answer and how many callers wait for it."""

    future: asyncio.Future[ModelResponse]
    waiters: int = 0
    listeners: list[Listener] = field(default_factory=list)


class Tickets:
    """A ticket for each request in flight."""

    def __init__(self) -> None:
        self._tickets: dict[Sequence, Ticket] = {}
        self._joinable: dict[str, Sequence] = {}
        """By rid, what nobody has ended."""

    def __len__(self) -> int:
        return len(self._tickets)

    def joinable(self, rid: str) -> Sequence | None:
        """What another call for `rid` joins."""
        return self._joinable.get(rid)

    def open(self, sequence: Sequence, future: asyncio.Future[ModelResponse]) -> None:
        """Begin a request."""
        self._tickets[sequence] = Ticket(future)
        self._joinable[sequence.request.rid] = sequence

    def of(self, sequence: Sequence) -> Ticket:
        """The ticket of a request in flight."""
        return self._tickets[sequence]

    def seal(self, sequences: Iterable[Sequence]) -> None:
        """Let nobody else join these."""
        for sequence in sequences:
            if self._joinable.get(sequence.request.rid) is sequence:
                del self._joinable[sequence.request.rid]

    def resolve(self, answers: list[Answer]) -> None:
        """Give each who waits its answer."""
        self.seal(sequence for sequence, _ in answers)
        for sequence, answer in answers:
            ticket = self._tickets.pop(sequence, None)
            if ticket is not None and ticket.waiters:
                settle(ticket.future, answer)
            elif ticket is not None:
                ticket.future.cancel()

    def relay(self, news: list[tuple[Sequence, int, Output]]) -> None:
        """Tell listeners (how many tokens came before, tokens)."""
        for sequence, before, output in news:
            if sequence in self._tickets:
                for listener in self._tickets[sequence].listeners:
                    listener(before, output)

    def give_up(self, reason: Exception) -> None:
        """Fail everything."""
        for ticket in self._tickets.values():
            settle(ticket.future, reason)
        self._tickets.clear()
        self._joinable.clear()


def settle(future: asyncio.Future[Any], answer: Any) -> None:
    """Resolve a future, unless that was done: with an exception, or a result."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
