"""A lease as one value: whatever speaks of one names all of it; what does not match the current one is an orphan."""

from __future__ import annotations

import msgspec


class LeaseId(msgspec.Struct, frozen=True):
    """Which right to work on a group: a later attempt at the same group, also by the same owner, is another lease."""

    group_id: int
    owner: str
    """The registration of a RaaS."""
    attempt: int
    """1 for the first lease of the group, one more for each that follows."""
