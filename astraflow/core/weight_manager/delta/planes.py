"""Entries ↔ byte planes. An entry is a changed element: its gap to the entry before it, and its new value.

The bytes of equal significance lie together, one deflate stream (RFC 1951) a plane, because each plane has its own
statistics: low gap bytes and mantissas are noise and are stored, high gap bytes and exponents are few symbols and take
a Huffman code. Values are rotated left by one bit first, which gathers the exponent in the highest byte.

Deflate and not zstd: on the high gap byte at 0.4% density its Huffman-only mode takes 1.56 bits an entry (entropy
1.47), zstd's fastest 1.91 and more, since zstd cannot be kept from matching what only looks repetitive.
"""

from __future__ import annotations

import zlib

import numpy as np

from astraflow.errors import WeightError

GAP_PLANES = 4
BLOCK = 2**17
"""Entries that are turned into planes, or read back, at once: bounds the memory."""
UNSIGNED: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
"""Element size in bytes → the integers that stand for its bits."""
_RAW_DEFLATE = -15
_STORED_ABOVE = 7.8
"""Bits of entropy a byte above which a plane is stored: coding would gain 2% and cost all the time."""
_RUNS_ABOVE = 0.9
"""Share of one symbol above which runs are worth looking for."""


class PlaneWriter:
    """One plane: bytes in, deflate out. How to code is decided on the first block."""

    def __init__(self) -> None:
        self._coder: zlib._Compress | None = None
        self.parts: list[bytes] = []
        self.length = 0

    def write(self, block: np.ndarray) -> None:
        """Add bytes (u8 [n])."""
        if self._coder is None:
            level, strategy = _method(block)
            self._coder = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE, 9, strategy)
        self._keep(self._coder.compress(block.data))

    def finish(self) -> None:
        if self._coder is not None:
            self._keep(self._coder.flush())

    def _keep(self, part: bytes) -> None:
        if part:
            self.parts.append(part)
            self.length += len(part)


class PlaneReader:
    """One plane: exactly as many bytes as are asked for, never more (a small file cannot blow up)."""

    def __init__(self, name: str, stream: memoryview) -> None:
        self._name = name
        self._decoder = zlib.decompressobj(_RAW_DEFLATE)
        self._left: bytes | memoryview = stream

    def read(self, count: int) -> np.ndarray:
        """The next `count` bytes, u8. WeightError: the stream is broken or ends before."""
        parts = []
        missing = count
        while missing:
            try:
                part = self._decoder.decompress(self._left, missing)
            except zlib.error as error:
                raise WeightError(f"plane {self._name} of a delta: {error}") from error
            self._left = self._decoder.unconsumed_tail
            if not part:
                raise WeightError(f"plane {self._name} of a delta ends {missing} bytes early")
            parts.append(part)
            missing -= len(part)
        return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), np.uint8)

    def finish(self) -> None:
        """Raise WeightError where bytes are left over."""
        try:
            extra = self._decoder.decompress(self._left, 1)
        except zlib.error as error:
            raise WeightError(f"plane {self._name} of a delta: {error}") from error
        if extra or self._decoder.unused_data or (self._left and not self._decoder.eof):
            raise WeightError(f"plane {self._name} of a delta has bytes beyond its last entry")


def to_planes(numbers: np.ndarray) -> np.ndarray:
    """Unsigned [n] → their bytes [size, n], least significant plane first."""
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little.view(np.uint8).reshape(-1, numbers.dtype.itemsize).T)


def from_planes(planes: list[np.ndarray], size: int) -> np.ndarray:
    """The inverse: unsigned [n] of `size` bytes; planes that are not given are 0."""
    table = np.zeros((len(planes[0]), size), np.uint8)
    for place, plane in enumerate(planes):
        table[:, place] = plane
    return table.reshape(-1).view(UNSIGNED[size])


def rotate_left(values: np.ndarray) -> np.ndarray:
    """By one bit: sign last, exponent first. 8-bit values stay: they have one plane in any case."""
    return values if values.dtype.itemsize == 1 else (values << 1) | (values >> (8 * values.dtype.itemsize - 1))


def rotate_right(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.itemsize == 1 else (values >> 1) | (values << (8 * values.dtype.itemsize - 1))


def _method(block: np.ndarray) -> tuple[int, int]:
    """zlib level and strategy for a plane that begins with `block`."""
    shares = np.bincount(block, minlength=256) / max(len(block), 1)
    seen = shares[shares > 0]
    if float(shares.max()) > _RUNS_ABOVE:
        return 1, zlib.Z_DEFAULT_STRATEGY
    entropy = float(-(seen * np.log2(seen)).sum())
    # few bytes say little about their distribution; coding them costs nothing
    return (0, zlib.Z_DEFAULT_STRATEGY) if entropy > _STORED_ABOVE and len(block) >= 4096 else (1, zlib.Z_HUFFMAN_ONLY)
