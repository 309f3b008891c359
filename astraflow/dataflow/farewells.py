"""RaaS that were told to leave, or whose uid another took: the same process is not let in again by its next heartbeat.

A process that says its incarnation is told apart from its successor. One that does not is known by its address, and is
taken for a successor once no heartbeat has come for a while.
"""

from __future__ import annotations

REMEMBERED = 1000
"""The newest ones that left."""


class Farewells:
    """Who left; time comes in with each call."""

    def __init__(self, silent_s: float) -> None:
        """silent_s: without a heartbeat for so long, who registers at the same address is another process."""
        self._silent_s = silent_s
        self._heard: dict[tuple[str, str, str], float] = {}
        """Process → its last heartbeat."""

    def note(self, uid: str, url: str, incarnation: str, now: float) -> None:
        """A process leaves."""
        self.forget(uid, url, incarnation)
        self._heard[_process(uid, url, incarnation)] = now
        while len(self._heard) > REMEMBERED:
            del self._heard[next(iter(self._heard))]

    def forget(self, uid: str, url: str, incarnation: str) -> None:
        """A process is back."""
        self._heard.pop(_process(uid, url, incarnation), None)

    def holds(self, uid: str, url: str, incarnation: str, now: float) -> bool:
        """A registration comes: is it a heartbeat of a process that left?"""
        process = _process(uid, url, incarnation)
        heard = self._heard.get(process)
        if heard is None:
            return False
        if not incarnation and now - heard > self._silent_s:
            del self._heard[process]
            return False
        self._heard[process] = now
        return True


def _process(uid: str, url: str, incarnation: str) -> tuple[str, str, str]:
    return uid, incarnation, "" if incarnation else url
