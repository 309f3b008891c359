"""Which request decodes in which row, and whose prompt it may share. A plain class: no tensors, no clock, no IO.

Invariants (`validate`):
- running sequences occupy rows 0 … running-1 once `admit` and `compact` have been carried out, so that a decode step
  works on a contiguous prefix of every buffer;
- rows that run × the longest that one of them may become (`reach`) stay within the cache's positions: a request waits
  until it fits, and none is ended later for want of memory;
- `holds[row]` names the prompt whose keys and values stand in the row's first positions. It outlives the sequence until
  the row is overwritten, and is forgotten at every new version: what one version computed serves no other (law 21).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from astraflow.core.data import ModelRequest
from astraflow.errors import InvariantError

_ID_BYTES = np.dtype(np.int32).itemsize
"""Of a prefix, each id."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way. `row` is -1 while it waits."""

    request: ModelRequest
    budget: int
    """Most tokens to sample."""
    ends: frozenset[int]
    """Tokens that end it."""
    submitted: float
    """Clock reading at submission, seconds."""
    first_token: float = 0.0
    row: int = -1
    prefix: bytes = b""
    """The prompt without its last token: what has to be in the cache before the first decode step."""

    def __post_init__(self) -> None:
        # one integer type, so that equal bytes mean equal ids
        self.prefix = self.request.input_ids[:-1].astype(np.int32).tobytes()

    @property
    def prefix_length(self) -> int:
        return len(self.request.input_ids) - 1

    @property
    def sampled(self) -> np.ndarray:
        """What the answer began with before it was cut, the end of the prompt."""
        ids = self.request.input_ids
        return ids[len(ids) - self.request.sampled :]

    @property
    def reach(self) -> int:
        """Most positions of the cache that it may come to need."""
        return self.prefix_length + self.budget


@dataclass(slots=True)
class Plan:
    """What has to be done, in this order, before the sequences placed may decode."""

    placed: list[Sequence] = field(default_factory=list)
    rows: int = 0
    """Rows up to the last that runs."""
    reach: int = 0
    """Most positions that one of them may come to need."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(source row, row): the prefix stands in the cache already. All sources are read before any row is written."""
    prefill: list[Sequence] = field(default_factory=list)
    """The prefix has to be computed."""
    shares: list[tuple[int, int]] = field(default_factory=list)
    """(source row, row): the prefix is computed by this plan's own prefill."""


class Scheduler:
    """Waiting requests in order of arrival, and the rows that run."""

    def __init__(self, capacity: int, positions: int | None = None) -> None:
        """`positions` of the cache are shared by at most `capacity` rows of one width; None: as many as they like."""
        self.rows: list[Sequence | None] = [None] * capacity
        self.waiting: deque[Sequence] = deque()
        self._positions = positions
        self._holds: list[bytes | None] = [None] * capacity
        self._free = list(range(capacity))

    @property
    def running(self) -> int:
        """Number of sequences that have a row."""
        return len(self.rows) - len(self._free)

    @property
    def idle(self) -> bool:
        return not self.waiting and len(self._free) == len(self.rows)

    def has(self, sequence: Sequence) -> bool:
        """Whether a request waits or runs."""
        return sequence in self.waiting or sequence in self.rows

    def submit(self, sequence: Sequence) -> None:
        """Queue a request."""
        self.waiting.append(sequence)

    def admit(self) -> Plan:
        """Give free rows to waiting requests, first come first served, and say where each prefix comes from."""
        plan = Plan()
        count, plan.reach = self._fitting()
        if self._positions is not None and count:
            self.keep_prefixes(self._positions // plan.reach)
        origin: dict[int, int] = {}  # row written by this plan → row that held its prefix before the plan
        computed: set[int] = set()
        for _ in range(count):
            sequence = self.waiting.popleft()
            source = self._holds.index(sequence.prefix) if sequence.prefix in self._holds else None
            row = self._take(source if source is not None and self.rows[source] is None else self._free[0])
            if source is None:
                computed.add(row)
                if sequence.prefix:
                    plan.prefill.append(sequence)
            elif source in computed:
                computed.add(row)
                plan.shares.append((source, row))
            else:
                origin[row] = origin.get(source, source)
                if origin[row] != row:
                    plan.copies.append((origin[row], row))
            self.rows[row], self._holds[row], sequence.row = sequence, sequence.prefix, row
            plan.placed.append(sequence)
        plan.rows = max((row + 1 for row, one in enumerate(self.rows) if one is not None), default=0)
        return plan

    def finish(self, rows: Collection[int]) -> list[Sequence]:
        """Free rows whose sequences have ended; return these sequences in the order of `rows`."""
        ended = []
        for row in rows:
            sequence = self.rows[row]
            if sequence is None:
                raise InvariantError(f"row {row} ended but nothing runs in it")
            self.rows[row] = None
            insort(self._free, row)
            ended.append(sequence)
        return ended

    def compact(self) -> list[tuple[int, int]]:
        """Move the last sequences into holes; return the moves (source row, row), all sources read first."""
        running = self.running
        holes = [row for row in self._free if row < running]
        if not holes:
            return []
        last = [row for row in range(running, len(self.rows)) if self.rows[row] is not None]
        moves = list(zip(last, holes, strict=True))
        for source, row in moves:
            sequence = self.rows[source]
            if sequence is None:
                raise InvariantError(f"row {source} is moved but nothing runs in it")
            self.rows[row], self.rows[source], sequence.row = sequence, None, row
            self._holds[row] = self._holds[source]
        self._free = list(range(running, len(self.rows)))
        return moves

    def withdraw(self, sequences: Collection[Sequence]) -> tuple[list[Sequence], list[int]]:
        """Take requests out of the queue; return these, and the rows of those that run already."""
        waiting = [sequence for sequence in self.waiting if sequence in sequences]
        self.waiting = deque(sequence for sequence in self.waiting if sequence not in sequences)
        return waiting, [one.row for one in self.rows if one is not None and one in sequences]

    def forget_prefixes(self) -> None:
        """The weights have changed: cached prefixes serve no new request."""
        self._holds = [None] * len(self.rows)

    def keep_prefixes(self, rows: int, length: int | None = None) -> None:
        """The cache has so many rows, of so many positions: forget the prefixes beyond."""
        for row, prefix in enumerate(self._holds):
            if prefix is not None and (row >= rows or (length is not None and len(prefix) > length * _ID_BYTES)):
                self._holds[row] = None

    def validate(self) -> None:
        """Raise InvariantError unless rows, free rows and sequences agree and the running rows are a prefix."""
        free = [row for row, sequence in enumerate(self.rows) if sequence is None]
        if free != self._free or free != list(range(self.running, len(self.rows))):
            raise InvariantError(f"free rows are {free}, noted as {self._free}, with {self.running} running")
        for row, sequence in enumerate(self.rows):
            if sequence is not None and sequence.row != row:
                raise InvariantError(f"row {row} holds a sequence that thinks it is in row {sequence.row}")

    def _fitting(self) -> tuple[int, int]:
        """How many of the waiting requests may run beside those that do, and the longest `reach` of all these."""
        if not self.waiting or not self._free:
            return 0, 0
        running = self.running
        longest = max((one.reach for one in self.rows if one is not None), default=0)
        count = 0
        for sequence in islice(self.waiting, len(self._free)):
            reach = max(longest, sequence.reach)
            if self._positions is not None and (running + count + 1) * reach > self._positions:
                break
            count, longest = count + 1, reach
        return count, longest

    def _take(self, row: int) -> int:
        self._free.remove(row)
        return row
