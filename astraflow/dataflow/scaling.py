"""Advice on the number of RaaS, from what was measured in the last while.

    trainers wait, RaaS are busy                        grow: more rollouts would be used
    trainers wait, RaaS have room                       hold: the staleness bound limits what may start, not the RaaS
    nobody waits, RaaS idle or much is dropped as stale shrink: rollouts come faster than they are trained on
    else                                                hold

How much follows from the same shares: as large a part more as trainers wait, as many fewer as are idle together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import Literal

from astraflow.core.protocol.messages import Advice

WAITING = 0.2
"""Share of the time that trainers wait, above which they lack rollouts."""

PROMPT = 0.05
"""Share below which they do not."""

BUSY = 0.2
"""Share of idle places below which RaaS are busy."""

STALE = 0.1
"""Share of stale drops above which too much is rolled out."""


def number(advice: Advice) -> float:
    """As a metric: RaaS to add, negative for too many."""
    return float(advice.instances if advice.action == "grow" else -advice.instances)


@dataclass(frozen=True)
class Sample:
    """A moment."""

    at: float
    waiting: float
    """Share of the trainers that wait for a batch."""
    idle: float
    """Share of the serving RaaS' places at which nothing runs."""
    ended: int
    """Groups that had ended by then, trained or dropped."""
    stale: int
    """Of them: dropped as stale."""
    size: int = 1
    """Live RaaS. Where it changes, what was measured before says nothing about what is now."""


class Advisor:
    """Fed with samples; time comes in them."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: deque[Sample] = deque()
        self._since = 0.0

    def see(self, sample: Sample) -> None:
        """Note how things stand."""
        if not self._samples or self._samples[-1].size != sample.size:
            self._samples.clear()
            self._since = sample.at
        self._samples.append(sample)
        while self._samples[0].at < sample.at - self._window_s:
            self._samples.popleft()

    def advise(self, size: int) -> Advice:
        """size: the RaaS that serve now."""
        samples = self._samples
        if not samples or samples[-1].at - self._since < self._window_s:
            reason = f"measured for less than {self._window_s:g} s since a RaaS came or went"
            return Advice(action="hold", instances=0, reason=reason)
        waiting = sum(s.waiting for s in samples) / len(samples)
        idle = sum(s.idle for s in samples) / len(samples)
        ended = samples[-1].ended - samples[0].ended
        stale = (samples[-1].stale - samples[0].stale) / ended if ended else 0.0
        action, instances, reason = self._decide(size, waiting, idle, stale)
        return Advice(
            action=action,
            instances=instances,
            reason=reason,
            wait_share=round(waiting, 3),
            idle_share=round(idle, 3),
            stale_share=round(stale, 3),
        )

    def _decide(
        self, size: int, waiting: float, idle: float, stale: float
    ) -> tuple[Literal["grow", "shrink", "hold"], int, str]:
        shares = f"trainers wait {waiting:.0%} of the time, {idle:.0%} of the places are idle"
        if waiting > WAITING and idle < BUSY:
            return "grow", max(1, ceil(size * waiting)), shares
        if waiting > WAITING:
            return "hold", 0, f"{shares}: the staleness bound limits what may start, not the RaaS"
        spare = int(size * idle)
        if waiting < PROMPT and size > 1 and (spare or stale > STALE):
            return "shrink", min(size - 1, max(1, spare)), f"{shares}, {stale:.0%} of the groups are dropped as stale"
        return "hold", 0, shares
