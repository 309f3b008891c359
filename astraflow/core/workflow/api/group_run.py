"""LAW 25. One stuck sample does not block its group for ever: which samples of a group run, and when it closes.

    over-sampling   n + over_sample samples begin; the group closes when n have ended well, the others are cut
    wait            every sample runs until it ends or its own deadline
    shrink          once the quorum has ended well, who takes `patience` times as long as it did is cut
    replace         as shrink, but another sample begins in its place, once

The quorum is min_group_size. Plain state: time, in seconds since the group began, comes with each call.
"""

from __future__ import annotations

from dataclasses import dataclass

from astraflow.core.workflow.api.group import CUT, STRAGGLER, GroupPolicy


@dataclass(frozen=True)
class Start:
    """Another sample begins."""

    index: int


@dataclass(frozen=True)
class Cut:
    """A sample ends here, whatever it is at."""

    index: int
    reason: str
    detail: str = ""


Action = Start | Cut


class GroupRun:
    """Decides for one group of n samples."""

    def __init__(self, n: int, policy: GroupPolicy) -> None:
        self._n = n
        self._policy = policy
        self._quorum = min(policy.min_group_size or min(2, n), n)
        self._running: dict[int, float] = {}
        self._replacements: set[int] = set()
        self._next = self._good = 0
        self._typical: float | None = None
        """When the quorum had ended."""

    def begin(self) -> list[Action]:
        """The samples that begin at once."""
        return [self._start(0.0) for _ in range(self._n + self._policy.over_sample)]

    @property
    def closed(self) -> bool:
        """Has everything ended?"""
        return not self._running

    @property
    def due(self) -> float | None:
        """When to look for stragglers; None where only an end changes anything."""
        if self._typical is None or self._policy.straggler == "wait" or not self._running:
            return None
        return min(self._running.values()) + self._allowed

    def ended(self, index: int, good: bool, now: float) -> list[Action]:
        """A sample ended; good: with a reward. One that ended together with the last that counts is cut already."""
        if self._running.pop(index, None) is None or not good:
            return []
        self._good += 1
        if self._good == self._quorum:
            self._typical = now
        if self._good < self._n:
            return []
        return [self._cut(i, CUT, f"{self._n} other samples had ended") for i in list(self._running)]

    def looked(self, now: float) -> list[Action]:
        """Time passed: stragglers are cut, or replaced."""
        if self.due is None:
            return []
        actions: list[Action] = []
        late = [index for index, since in self._running.items() if now >= since + self._allowed]
        for index in late:
            took = now - self._running[index]
            detail = f"it ran {took:.1f} s; {self._quorum} others had ended after {self._typical:.1f} s"
            actions.append(self._cut(index, STRAGGLER, detail))
            if self._policy.straggler == "replace" and index not in self._replacements:
                self._replacements.add(self._next)
                actions.append(self._start(now))
        return actions

    @property
    def _allowed(self) -> float:
        assert self._typical is not None
        return self._policy.patience * self._typical

    def _start(self, now: float) -> Start:
        index, self._next = self._next, self._next + 1
        self._running[index] = now
        return Start(index)

    def _cut(self, index: int, reason: str, detail: str) -> Cut:
        del self._running[index]
        return Cut(index, reason, detail)
