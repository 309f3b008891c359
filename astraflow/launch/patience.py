"""What a run waits for, told when it takes long: a reward that hangs looks like one that is slow. No IO, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

QUIET_S = 20.0
"""Seconds of a wait before it is told."""

SLOWER = 3.0
"""Nor before it takes so many times as long as a step has taken on average: slow steps are no news."""

AGAIN_S = 30.0
"""Seconds before it is told again, where what is waited for has changed; twice as many each time."""


@dataclass
class _Wait:
    since: float
    due: float
    """When it is told next, in seconds since its beginning."""
    pause: float = AGAIN_S
    told: str = ""


class Patience:
    """Decides which waits of Dataflow's status are told, and when."""

    def __init__(self) -> None:
        self._waits: dict[str, _Wait] = {}

    def look(self, status: Mapping[str, Any], pace_s: float | None, now: float) -> list[str]:
        """What to tell of a status. pace_s: seconds a step so far; now: Unix time."""
        found = {wait["who"]: wait for wait in status.get("waiting", ())}
        self._waits = {who: wait for who, wait in self._waits.items() if who in found}
        told = []
        for who, entry in found.items():
            # a request that is made anew goes on with the wait
            wait = self._waits.setdefault(who, _Wait(entry["since"], max(QUIET_S, SLOWER * (pace_s or 0.0))))
            waited = now - wait.since
            if waited >= wait.due and entry["on"] != wait.told:
                told.append(f"{who} has waited {waited:.0f} s on {entry['on']}")
                wait.due, wait.pause, wait.told = waited + wait.pause, 2 * wait.pause, entry["on"]
        return told
