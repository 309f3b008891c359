"""Instances that fail again and again get no work for a while: one bad machine must not eat the prompts of a run.

A failure is a group that came back without one episode, or a death. So many in a row put the uid, whatever process is
behind it, in quarantine, with the reason of the last; twice as long each time, until a group succeeds. It is for one
odd instance among others: where nobody else could work the fault is not its own, and what stops the run is LAW 27.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

LONGEST_S = 3600.0

REMEMBERED = 1000
"""Records of uids, those that failed last."""


@dataclass
class Record:
    """What is held against a uid."""

    failures: int = 0
    """In a row."""
    terms: int = 0
    """Times in quarantine, since it last succeeded."""
    until: float = -inf
    reason: str = ""


class Quarantine:
    """Records by uid; time comes in with each call."""

    def __init__(self, failures: int, seconds: float) -> None:
        """failures in a row before the first term; seconds: how long that one is."""
        self._failures = failures
        self._seconds = seconds
        self._records: dict[str, Record] = {}

    def failed(self, uid: str, reason: str) -> bool:
        """Note a failure; True where the uid should go into quarantine."""
        record = self._records.pop(uid, None) or Record()
        self._records[uid] = record
        if len(self._records) > REMEMBERED:
            del self._records[next(iter(self._records))]
        record.failures += 1
        record.reason = reason
        return self.due(uid)

    def due(self, uid: str) -> bool:
        """Has it failed once too often since its last term?"""
        record = self._records.get(uid)
        # on probation, the first failure is one too many
        return record is not None and record.failures >= (1 if record.terms else self._failures)

    def sentence(self, uid: str, now: float) -> str:
        """Begin a term; returns why and how long, for people."""
        record = self._records.setdefault(uid, Record())
        seconds = min(LONGEST_S, self._seconds * 2.0**record.terms)
        failures = record.failures
        record.terms, record.until, record.failures = record.terms + 1, now + seconds, 0
        return f"{failures} failures in a row, no work for {seconds:g} s: {record.reason}"

    def holds(self, uid: str, now: float) -> bool:
        """Is it in quarantine?"""
        record = self._records.get(uid)
        return record is not None and now < record.until

    def release(self, uid: str) -> None:
        """Its term ends early."""
        record = self._records.get(uid)
        if record is not None:
            record.until = -inf

    def succeeded(self, uid: str) -> None:
        """A group came back with an episode: all is forgotten."""
        self._records.pop(uid, None)
