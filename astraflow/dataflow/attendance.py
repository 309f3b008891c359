"""Which of several policies' trainers are there. One that dies must not stall the others.

A trainer is there while a call of it goes on, and for a deadline after its last one. Who is silent for longer, has made
its last step, or is said to have died for good is absent, as long as another one is there: the version barrier does not
wait for it, its credit limits nobody, and new groups for it are dropped, counted. With its next call it is back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from astraflow.errors import InvariantError


@dataclass
class Attendance:
    """State of it; time comes in with each call."""

    deadline_s: float
    _heard: dict[str, float] = field(default_factory=dict)
    _calls: Counter[str] = field(default_factory=Counter)
    _absent: set[str] = field(default_factory=set)

    @property
    def absent(self) -> frozenset[str]:
        """Those that nobody waits for."""
        return frozenset(self._absent)

    def expect(self, model_id: str, now: float) -> None:
        """A registered model's trainer should call; it has until the deadline."""
        self._heard.setdefault(model_id, now)

    def enter(self, model_id: str, now: float) -> bool:
        """A call of a registered model's trainer begins; True where it is back by that."""
        back = model_id in self._absent
        self._absent.discard(model_id)
        self._heard[model_id] = now
        self._calls[model_id] += 1
        return back

    def leave(self, model_id: str, now: float) -> None:
        """The call has ended."""
        self._calls[model_id] -= 1
        self._heard[model_id] = now

    def done(self, model_id: str) -> bool:
        """A trainer makes no more steps; True where others go on without it from now on.

        Where it died, a call that it had begun may still go on.
        """
        return model_id not in self._absent and self._miss([model_id]) == [model_id]

    def poll(self, now: float) -> list[str]:
        """Who is absent from now on."""
        late = [m for m, heard in self._heard.items() if not self._calls[m] and now - heard > self.deadline_s]
        return self._miss([model_id for model_id in late if model_id not in self._absent])

    def _miss(self, model_ids: list[str]) -> list[str]:
        # one is always there: without any other nobody is stalled by it
        if len(self._heard) - len(self._absent) <= len(model_ids):
            return []
        self._absent.update(model_ids)
        return model_ids

    def validate(self) -> None:
        """Raise InvariantError unless one of the registered models is there and no call ended twice."""
        if self._heard and self._heard.keys() <= self._absent:
            raise InvariantError("every policy is said to be absent")
        if min(self._calls.values(), default=0) < 0:
            raise InvariantError("a trainer's call ended twice")
