"""Which rows a forward pass sees together. The gradient does not depend on it; memory and speed do.

All functions take token counts and return bins of row indices; every row is in exactly one bin.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from astraflow.errors import DataError

Bins = list[list[int]]


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Put each item, the longest first, into the first bin with room (Johnson, 1973: at most 11/9 OPT + 6/9 bins).

    DataError where an item is longer than `capacity`: nothing is cut silently.
    """
    bins: Bins = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[item]
        if length > capacity:
            raise DataError(
                f"row {item} has {length} tokens; a micro-batch holds {capacity} (mb_spec.max_tokens_per_mb)"
            )
        for index, free in enumerate(room):
            if length <= free:
                bins[index].append(item)
                room[index] -= length
                break
        else:
            bins.append([item])
            room.append(capacity - length)
    return bins


def karmarkar_karp(lengths: Sequence[int], k: int, *, equal_count: bool = False) -> Bins:
    """Split into `k` bins of nearly equal sums by the largest differencing method (Karmarkar & Karp, 1982).

    With `equal_count` every bin has len(lengths) / k items, by differencing sets of k items at a time; ValueError where
    k does not divide.
    """
    if k < 1:
        raise ValueError(f"k = {k} bins")
    if equal_count and len(lengths) % k:
        raise ValueError(f"{len(lengths)} items cannot be split into {k} bins of equal count")
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    step = k if equal_count else 1
    ties = count()  # equal spreads are merged in order of creation, so the result is deterministic
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []

    def push(parts: list[tuple[int, list[int]]]) -> None:
        parts.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (parts[-1][0] - parts[0][0], next(ties), parts))

    for start in range(0, len(order), step):
        items = order[start : start + step]
        push([(lengths[i], [i]) for i in items] + [(0, []) for _ in range(k - len(items))])
    while len(heap) > 1:
        _, _, wide = heapq.heappop(heap)
        _, _, next_wide = heapq.heappop(heap)
        # the largest sum of one joins the smallest of the other
        push([(a + b, x + y) for (a, x), (b, y) in zip(wide, reversed(next_wide), strict=True)])
    return [items for _, items in heap[0][2]] if heap else [[] for _ in range(k)]


def micro_batches(lengths: Sequence[int], max_tokens: int, dp_size: int = 1) -> list[Bins]:
    """Cut rows into bins of at most `max_tokens` for each data-parallel rank: [dp_size][bins of that rank].

    The number of bins is rounded up to a multiple of `dp_size`, with empty bins where needed: every rank runs the same
    number of forward passes, so collectives line up. Bins are dealt out in order of their tokens, so that the ranks'
    passes of one turn are alike.
    """
    bins = first_fit_decreasing(lengths, max_tokens)
    bins.extend([] for _ in range(-len(bins) % dp_size))
    bins.sort(key=lambda items: -sum(lengths[i] for i in items))
    return [bins[rank::dp_size] for rank in range(dp_size)]


def split_groups(group_ids: Sequence[int], n_minibatches: int) -> Bins:
    """Split rows into `n_minibatches`, groups kept whole and in order; group counts differ by at most one.

    ValueError where there are fewer groups than minibatches.
    """
    rows_of: dict[int, list[int]] = {}
    for row, group in enumerate(group_ids):
        rows_of.setdefault(group, []).append(row)
    groups = list(rows_of.values())
    if len(groups) < n_minibatches:
        raise ValueError(f"{len(groups)} groups cannot make {n_minibatches} minibatches")
    size, longer = divmod(len(groups), n_minibatches)
    bins: Bins = []
    start = 0
    for index in range(n_minibatches):
        end = start + size + (index < longer)
        bins.append([row for rows in groups[start:end] for row in rows])
        start = end
    return bins
