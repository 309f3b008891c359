"""How work is spread over instances: by free room, and within what each one's version may still fill."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heapreplace


def share_out(room: Mapping[str, int], sizes: Mapping[str, int], groups: int) -> dict[str, int]:
    """Spread up to `groups` over instances, the relatively emptiest first.

    room: free places of each instance, at most its share; sizes: places of each in all.
    """
    shares: dict[str, int] = {}
    # emptiest first: the free share of an instance after what it was given here
    heap = [(-free / sizes[key], key, free) for key, free in room.items() if free > 0]
    heapify(heap)
    for _ in range(min(groups, sum(max(0, free) for free in room.values()))):
        _, key, free = heap[0]
        shares[key] = shares.get(key, 0) + 1
        free -= 1
        # one without room sinks below all others and is not met again: the loop ends first
        heapreplace(heap, (-free / sizes[key] if free else 1.0, key, free))
    return shares


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
