"""How fast each instance is, as measured: work is spread by it, so that a slow one contributes and holds up nobody.

An instance's rate is its places over the seconds that a group takes there. Who has not been measured yet, or not for a
while, counts as average: it gets work again, and is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.2
"""Weight of the newest group."""

FORGET_S = 120.0
"""An estimate that is older says nothing: a machine that was busy may be free again."""


@dataclass
class Estimate:
    """Of one instance."""

    seconds: float
    """A group's time from lease to result."""
    at: float


class Speeds:
    """Estimates by instance; time comes in with each call."""

    def __init__(self) -> None:
        self._estimates: dict[str, Estimate] = {}

    def finished(self, key: str, seconds: float, now: float) -> None:
        """A group of an instance came back with episodes."""
        known = self._estimates.get(key)
        if known is None or now - known.at > FORGET_S:
            self._estimates[key] = Estimate(seconds, now)
        else:
            known.seconds += SMOOTHING * (seconds - known.seconds)
            known.at = now

    def seconds(self, key: str) -> float | None:
        """A group's time at an instance; None where nothing is known."""
        known = self._estimates.get(key)
        return None if known is None else known.seconds

    def forget(self, key: str) -> None:
        """An instance is gone."""
        self._estimates.pop(key, None)

    def weights(self, places: dict[str, int], now: float) -> dict[str, float]:
        """Instance → its places, more for a fast one and fewer for a slow one; the average group time is neutral."""
        fresh = {}
        for key in places:
            known = self._estimates.get(key)
            if known is not None and now - known.at <= FORGET_S:
                fresh[key] = max(known.seconds, 1e-6)
        if not fresh:
            return {key: float(n) for key, n in places.items()}
        average = sum(fresh.values()) / len(fresh)
        return {key: n * average / fresh.get(key, average) for key, n in places.items()}
