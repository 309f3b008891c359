"""Two full versions in one layout → a delta file. Reads at the speed of memory, holds blocks and the result only.

Elements are compared as integers, so -0 differs from 0 and a NaN equals itself: what arrives is the same bits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.data.manifest import WIRE_DTYPES
from astraflow.core.weight_manager.delta.container import Header, write_container
from astraflow.core.weight_manager.delta.kernels import LINE, scan, split
from astraflow.core.weight_manager.delta.planes import BLOCK, GAP_PLANES, UNSIGNED, PlaneWriter
from astraflow.core.weight_manager.digest import parts_digest
from astraflow.errors import WeightError

CHUNK = 8 * 2**20
"""Bytes compared between two questions whether to proceed."""
DENSE = 0.5
"""Share of changed elements above which a tensor travels whole: an entry costs about as much as two elements."""
SAMPLES = 64
SAMPLE = 1024
"""A tensor's density is judged on so many evenly spread stretches of so many elements."""
GAP_MAX = 2**32
"""Elements beyond which a gap might not fit its planes."""
FULL = -1
"""In the table of tensors: this one travels whole."""


@dataclass(frozen=True)
class EncodedDelta:
    """A delta file in memory."""

    parts: list[bytes]
    changed: int
    """Elements that differ, those of tensors that travel whole not counted."""
    full: int
    """Tensors that travel whole."""

    @property
    def length(self) -> int:
        return sum(map(len, self.parts))

    @property
    def digest(self) -> str:
        """xxh3-128 of the file."""
        return parts_digest(self.parts)


def encode_delta(
    base: Manifest,
    target: Manifest,
    before: memoryview,
    after: memoryview,
    *,
    limit: int | None = None,
    proceed: Callable[[], bool] = lambda: True,
) -> EncodedDelta | None:
    """The delta from `base` (its bytes are `before`) to `target` (`after`).

    None where it would be longer than `limit` bytes, or where `proceed` (asked before every chunk) says no.
    WeightError: the versions have different tensors.
    """
    _check_comparable(base, target)
    writer = _Writer()
    table = []
    for entry in target.tensors:
        unsigned = UNSIGNED[WIRE_DTYPES[entry.dtype]]
        count = entry.nbytes // WIRE_DTYPES[entry.dtype]
        old = np.frombuffer(before, unsigned, count, entry.offset)
        new = np.frombuffer(after, unsigned, count, entry.offset)
        changed = 0
        if count and (count > GAP_MAX or _density(old, new) > DENSE):
            changed = FULL
            writer.add_full(new)
        else:
            for begin in range(0, count, CHUNK // new.itemsize):
                if not proceed() or (limit is not None and writer.length > limit):
                    return None
                changed += writer.add(old, new, begin, min(begin + CHUNK // new.itemsize, count))
        writer.end_tensor()
        if limit is not None and writer.length > limit:
            return None
        table.append((entry.name, entry.shape, entry.dtype, changed))
    parts = write_container(Header.between(base, target), writer.finish(table))
    delta = EncodedDelta(parts, sum(max(row[3], 0) for row in table), sum(row[3] == FULL for row in table))
    return delta if proceed() and (limit is None or delta.length <= limit) else None


class _Writer:
    """Collects entries into blocks and blocks into planes."""

    def __init__(self) -> None:
        self._planes = {
            "gaps": [PlaneWriter() for _ in range(GAP_PLANES)],
            "values": [PlaneWriter() for _ in range(max(WIRE_DTYPES.values()))],
        }
        self._full: list[bytes] = []
        # the block that is being filled; a scan wants a line of places
        self._gaps = np.empty(BLOCK + LINE, np.uint32)
        self._values = np.empty(BLOCK + LINE, np.uint8)
        self._count = 0
        self.length = 0
        """Bytes so far, without the entries that wait for their block to fill."""
        self._next = 0
        """First position of the tensor that the next entry may have."""

    def add(self, old: np.ndarray, new: np.ndarray, begin: int, end: int) -> int:
        """Write an entry for each element of [begin, end) that differs; return how many there are."""
        if self._values.dtype != new.dtype:
            self._flush(self._count)
            self._values = np.empty(len(self._gaps), new.dtype)
        total = 0
        while begin < end:
            begin, self._next, found = scan(
                old, new, begin, end, self._next, self._gaps[self._count :], self._values[self._count :]
            )
            self._count += found
            total += found
            if self._count >= BLOCK:
                self._flush(BLOCK)
        return total

    def add_full(self, values: np.ndarray) -> None:
        data = values.tobytes()
        self._full.append(data)
        self.length += len(data)

    def end_tensor(self) -> None:
        """Positions count from 0 again."""
        self._next = 0

    def finish(self, table: Sequence[tuple[str, tuple[int, ...], str, int]]) -> dict[str, list[bytes]]:
        """The file's tensors; planes that nothing was written to are left out."""
        self._flush(self._count)
        tensors: dict[str, list[bytes]] = {"tensors": [zlib.compress(msgspec.json.encode(table), 6, -15)]}
        for kind, planes in self._planes.items():
            for place, plane in enumerate(planes):
                if plane.parts:
                    tensors[f"{kind}.{place}"] = plane.parts
        if self._full:
            tensors["full"] = self._full
        return tensors

    def _flush(self, count: int) -> None:
        """Code the first `count` entries of the block; what is left begins the next one."""
        if count:
            self._code("gaps", split(self._gaps[:count], rotate=False))
            self._code("values", split(self._values[:count], rotate=True))
        left = self._count - count
        self._gaps[:left] = self._gaps[count : self._count]
        self._values[:left] = self._values[count : self._count]
        self._count = left

    def _code(self, kind: str, blocks: np.ndarray) -> None:
        for plane, block in zip(self._planes[kind], blocks, strict=False):
            before = plane.length
            plane.write(block)
            self.length += plane.length - before


def _check_comparable(base: Manifest, target: Manifest) -> None:
    def shape_of(entry: TensorEntry) -> tuple[object, ...]:
        return (entry.name, entry.shape, entry.dtype, entry.offset, entry.aliases)

    if base.model_id != target.model_id or [*map(shape_of, base.tensors)] != [*map(shape_of, target.tensors)]:
        raise WeightError(
            f"no delta from version {base.version} of {base.model_id} to version {target.version} of "
            f"{target.model_id}: their tensors are not the same"
        )


def _density(old: np.ndarray, new: np.ndarray) -> float:
    """Share of changed elements, judged on evenly spread stretches (on all of a small tensor)."""
    stretch = len(new) // SAMPLES
    if stretch > SAMPLE:
        old, new = (side[: SAMPLES * stretch].reshape(SAMPLES, stretch)[:, :SAMPLE] for side in (old, new))
    return float(np.count_nonzero(old != new)) / new.size
