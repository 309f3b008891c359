"""A delta file → changes. What is read is checked before it is believed: counts, positions, ends of streams."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import msgspec
import numpy as np

from astraflow.core.data import Manifest
from astraflow.core.data.manifest import WIRE_DTYPES
from astraflow.core.weight_manager.delta.container import read_container
from astraflow.core.weight_manager.delta.encode import FULL
from astraflow.core.weight_manager.delta.kernels import exchange, join, positions
from astraflow.core.weight_manager.delta.planes import BLOCK, GAP_PLANES, UNSIGNED, PlaneReader
from astraflow.errors import WeightError

TABLE_MAX = 64 * 2**20
"""Bytes that the table of tensors may have: about 600,000 tensors."""


@dataclass(frozen=True)
class Change:
    """Elements of one tensor that take new values. A tensor's changes may come in several pieces."""

    index: int
    """Of the tensor, in the manifest."""
    positions: np.ndarray | None
    """i64, strictly growing, row-major in the tensor. None: all of it."""
    values: np.ndarray
    """The new bits: unsigned integers of the element's size, one per position."""


def replace(elements: np.ndarray, change: Change) -> np.ndarray:
    """Write a change into a tensor's bits (unsigned [numel], contiguous) and return what was there."""
    if change.positions is not None:
        return exchange(elements, change.positions, change.values)
    kept = elements.copy()
    elements[:] = change.values
    return kept


class _Row(msgspec.Struct, array_like=True, frozen=True):
    name: str
    shape: tuple[int, ...]
    dtype: str
    changed: int


class DeltaReader:
    """A delta file in memory. WeightError wherever it is not one."""

    def __init__(self, file: memoryview) -> None:
        self.header, self._parts = read_container(file)
        self._rows = _table(self._parts.get("tensors"))

    @property
    def changed(self) -> int:
        """Elements that change, those of tensors that travel whole not counted."""
        return sum(max(row.changed, 0) for row in self._rows)

    def check(self, base_version: int, base_digest: str, target: Manifest) -> None:
        """Raise WeightError unless this delta makes `target` of that base: law 20."""
        header = self.header
        if (header.base_version, header.base_digest) != (base_version, base_digest):
            raise WeightError(
                f"a delta on version {header.base_version} ({header.base_digest}) is refused: "
                f"the engine holds version {base_version} ({base_digest})"
            )
        if (header.model_id, header.version, header.digest) != (target.model_id, target.version, target.digest):
            raise WeightError(
                f"a delta to version {header.version} of {header.model_id} ({header.digest}) was taken for "
                f"version {target.version} of {target.model_id} ({target.digest})"
            )
        if [row[:3] for row in map(msgspec.structs.astuple, self._rows)] != [
            (entry.name, entry.shape, entry.dtype) for entry in target.tensors
        ]:
            raise WeightError(f"a delta to version {target.version} of {target.model_id} lists other tensors")

    def changes(self) -> Iterator[Change]:
        """All changes, in the order of the tensors, in pieces of at most BLOCK entries (or one whole tensor)."""
        gaps = [self._plane(f"gaps.{place}") for place in range(GAP_PLANES)]
        values = [self._plane(f"values.{place}") for place in range(max(WIRE_DTYPES.values()))]
        full, used = self._parts.get("full", memoryview(b"")), 0
        for index, row in enumerate(self._rows):
            size = WIRE_DTYPES[row.dtype]
            numel = prod(row.shape)
            if row.changed == FULL:
                if len(full) - used < numel * size:
                    raise WeightError(f"a delta does not hold all of {row.name}, which it says it does")
                yield Change(index, None, np.frombuffer(full, UNSIGNED[size], numel, used))
                used += numel * size
                continue
            next_position, left = 0, row.changed
            while left:
                count = min(left, BLOCK)
                where = positions(_read(gaps, count, GAP_PLANES), next_position)
                next_position = int(where[-1]) + 1
                if next_position > numel:
                    raise WeightError(f"a delta changes element {next_position - 1} of {row.name}, which has {numel}")
                yield Change(index, where, join(_read(values[:size], count, size), rotate=True))
                left -= count
        if used != len(full):
            raise WeightError(f"a delta has {len(full) - used} bytes of whole tensors too many")
        for plane in (*gaps, *values):
            if plane is not None:
                plane.finish()

    def _plane(self, name: str) -> PlaneReader | None:
        return PlaneReader(name, self._parts[name]) if name in self._parts else None


def _read(planes: list[PlaneReader | None], count: int, size: int) -> list[np.ndarray]:
    """The next `count` bytes of `size` planes; a plane that is missing is an error."""
    present = [plane for plane in planes if plane is not None]
    if len(present) < size:
        raise WeightError(f"a delta lacks {size - len(present)} of the {size} planes of its entries")
    return [plane.read(count) for plane in present]


def _table(stream: memoryview | None) -> list[_Row]:
    if stream is None:
        raise WeightError("a delta file without its table of tensors")
    try:
        decoder = zlib.decompressobj(-15)
        text = decoder.decompress(stream, TABLE_MAX)
        if not decoder.eof:
            raise WeightError(f"the table of a delta's tensors is cut or longer than {TABLE_MAX} bytes")
        rows = msgspec.json.decode(text, type=list[_Row])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise WeightError(f"the table of a delta's tensors: {error}") from error
    for row in rows:
        if row.dtype not in WIRE_DTYPES or not FULL <= row.changed <= prod(row.shape) or min(row.shape, default=0) < 0:
            raise WeightError(f"a delta's tensor {row.name} of {row.dtype} {row.shape} cannot change {row.changed}")
    return rows
