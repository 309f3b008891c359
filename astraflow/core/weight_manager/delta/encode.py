"""Two full versions in one layout → a delta file. Reads at the speed of memory, holds blocks and the result only.

Elements are compared as integers, so -0 differs from 0 and a NaN equals itself: what arrives is the same bits.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.data.manifest import WIRE_DTYPES
from astraflow.core.weight_manager.delta.container import Header, write_container
from astraflow.core.weight_manager.delta.planes import (
    BLOCK,
    GAP_PLANES,
    UNSIGNED,
    PlaneWriter,
    rotate_left,
    to_planes,
)
from astraflow.core.weight_manager.digest import parts_digest
from astraflow.errors import WeightError

CHUNK = 2**19
"""Bytes compared at once: both sides and the mask stay in a core's cache."""
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
            for positions, values in changes(old, new):
                if not proceed() or (limit is not None and writer.length > limit):
                    return None
                changed += len(positions)
                writer.add(positions, values)
        writer.end_tensor()
        if limit is not None and writer.length > limit:
            return None
        table.append((entry.name, entry.shape, entry.dtype, changed))
    parts = write_container(Header.between(base, target), writer.finish(table))
    delta = EncodedDelta(parts, sum(max(row[3], 0) for row in table), sum(row[3] == FULL for row in table))
    return delta if proceed() and (limit is None or delta.length <= limit) else None


def changes(old: np.ndarray, new: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions (i64, growing) and new values of the elements that differ, chunk by chunk; chunks without any too.

    Eight bytes are compared at a time; only words that differ are looked into.
    """
    size = new.dtype.itemsize
    per_word, per_chunk = 8 // size, CHUNK // size
    shift = per_word.bit_length() - 1
    mask = np.empty(CHUNK // 8, np.bool_)
    for start in range(0, len(new), per_chunk):
        a, b = old[start : start + per_chunk], new[start : start + per_chunk]
        whole = len(b) // per_word * per_word
        a_words, b_words = a[:whole].view(np.uint64), b[:whole].view(np.uint64)
        differ = mask[: len(b_words)]
        np.not_equal(a_words, b_words, out=differ)
        words = np.flatnonzero(differ)
        fresh = b_words[words].view(new.dtype)
        inside = np.flatnonzero(a_words[words].view(new.dtype) != fresh)
        values = fresh[inside]
        # element = word × per_word + place in the word; shifts, because dividing costs more than all the rest
        positions = words[inside >> shift]
        positions <<= shift
        inside &= per_word - 1
        positions += inside
        if whole < len(b):
            rest = np.flatnonzero(a[whole:] != b[whole:])
            positions = np.concatenate((positions, rest + whole))
            values = np.concatenate((values, b[whole:][rest]))
        positions += start
        yield positions, values


class _Writer:
    """Collects entries into blocks and blocks into planes."""

    def __init__(self) -> None:
        self._gaps = [PlaneWriter() for _ in range(GAP_PLANES)]
        self._values = [PlaneWriter() for _ in range(max(WIRE_DTYPES.values()))]
        self._full: list[bytes] = []
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._count = 0
        self.length = 0
        """Bytes so far, without the entries that wait for their block to fill."""
        self._next = 0
        """First position of the tensor that the next entry may have."""

    def add(self, positions: np.ndarray, values: np.ndarray) -> None:
        if not len(positions):
            return
        if self._waiting and self._waiting[0][1].dtype != values.dtype:
            self._flush()
        gaps = np.empty(len(positions), np.uint32)
        gaps[0] = positions[0] - self._next
        np.subtract(positions[1:] - 1, positions[:-1], out=gaps[1:], casting="unsafe")
        self._next = int(positions[-1]) + 1
        self._waiting.append((gaps, values))
        self._count += len(gaps)
        if self._count >= BLOCK:
            self._flush()

    def add_full(self, values: np.ndarray) -> None:
        data = values.tobytes()
        self._full.append(data)
        self.length += len(data)

    def end_tensor(self) -> None:
        """Positions count from 0 again."""
        self._next = 0

    def finish(self, table: Sequence[tuple[str, tuple[int, ...], str, int]]) -> dict[str, list[bytes]]:
        """The file's tensors; planes that nothing was written to are left out."""
        self._flush()
        tensors: dict[str, list[bytes]] = {"tensors": [zlib.compress(msgspec.json.encode(table), 6, -15)]}
        for kind, planes in (("gaps", self._gaps), ("values", self._values)):
            for place, plane in enumerate(planes):
                if plane.parts:
                    tensors[f"{kind}.{place}"] = plane.parts
        if self._full:
            tensors["full"] = self._full
        return tensors

    def _flush(self) -> None:
        if not self._waiting:
            return
        gaps = np.concatenate([gaps for gaps, _ in self._waiting])
        values = np.concatenate([values for _, values in self._waiting])
        self._waiting, self._count = [], 0
        for planes, numbers in ((self._gaps, gaps), (self._values, rotate_left(values))):
            for plane, block in zip(planes, to_planes(numbers), strict=False):
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
    if len(new) <= SAMPLES * SAMPLE:
        return float(np.count_nonzero(old != new)) / len(new)
    starts = np.linspace(0, len(new) - SAMPLE, SAMPLES).astype(np.int64)
    different = sum(int(np.count_nonzero(old[s : s + SAMPLE] != new[s : s + SAMPLE])) for s in starts)
    return different / (SAMPLES * SAMPLE)
