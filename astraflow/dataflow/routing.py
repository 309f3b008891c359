"""How work is spread over instances: by speed and room, by session, within what each version may still fill."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from heapq import heapify, heapreplace
from math import inf


def share_out(
    room: Mapping[str, int], sizes: Mapping[str, float], groups: int, taken: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Spread up to `groups` over instances, each to the one that will have the least to do for its size.

    room: groups that each may get; sizes: what each can do, its places weighed by its speed; taken: what each has
    already, None: all of its size but its room. So a slow instance gets the less, the scarcer work is.
    """
    shares: dict[str, int] = {}
    has = {key: sizes[key] - free if taken is None else taken[key] for key, free in room.items()}
    heap = [((has[key] + 1) / sizes[key], key, free) for key, free in room.items() if free > 0]
    heapify(heap)
    for _ in range(min(groups, sum(max(0, free) for free in room.values()))):
        _, key, free = heap[0]
        shares[key] = shares.get(key, 0) + 1
        free -= 1
        # one without room sinks below all others and is not met again: the loop ends first
        heapreplace(heap, ((has[key] + shares[key] + 1) / sizes[key] if free else inf, key, free))
    return shares


class Affinity:
    """Which instance had a session last: what its tasks have in common may still be in that one's cache."""

    def __init__(self, most: int = 10_000) -> None:
        """most: sessions that are remembered, the newest."""
        self._most = most
        self._last: OrderedDict[str, str] = OrderedDict()

    def divide(self, sessions: Mapping[int, str | None], shares: Mapping[str, int]) -> dict[str, list[int]]:
        """Give each instance so many groups as its share: those of its sessions first, then in order.

        sessions: group → its session (None: it has none), in order; as many as the shares sum to.
        """
        left = dict(shares)
        given: dict[str, list[int]] = {key: [] for key, share in shares.items() if share}
        others = []
        for group, session in sessions.items():
            key = None if session is None else self._last.get(session)
            if key is not None and left.get(key, 0) > 0:
                given[key].append(group)
                left[key] -= 1
            else:
                others.append(group)
        for key in given:
            while left[key]:
                given[key].append(others.pop(0))
                left[key] -= 1
            for group in given[key]:
                self._remember(sessions[group], key)
        return {key: sorted(groups) for key, groups in given.items()}

    def _remember(self, session: str | None, key: str) -> None:
        if session is None:
            return
        self._last[session] = key
        self._last.move_to_end(session)
        if len(self._last) > self._most:
            self._last.popitem(last=False)


def fit(shares: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """Trim shares so that those allowed at most a groups get a places in all, for every a.

    Places are given to the strictest first: an older version may fill the first places only.
    """
    given = 0
    fitted: dict[str, int] = {}
    for key in sorted(shares, key=lambda key: allowed[key]):
        fitted[key] = max(0, min(shares[key], allowed[key] - given))
        given += fitted[key]
    return fitted
