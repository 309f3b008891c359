"""Byte planes of entries ↔ deflate streams. An entry is a changed element: its gap to the entry before, and its value.

The bytes of equal significance lie together in a plane, deflate streams (RFC 1951) of a block each, because each has
its own statistics: low gap bytes and mantissas are near noise, high gap bytes and exponents are few symbols and take a
Huffman code. Values are rotated left by one bit first, which gathers the exponent in the highest byte.

Deflate and not zstd: on the high gap byte at 0.4% density its Huffman-only mode takes 1.56 bits an entry (entropy
1.47), zstd's fastest 1.91 and more, since zstd cannot be kept from matching what only looks repetitive.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np

from astraflow.errors import WeightError

GAP_PLANES = 4
BLOCK = 2**17
"""Entries that are turned into planes, or read back, at once: bounds the memory."""
UNSIGNED: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
"""Element size in bytes → the integers that stand for its bits."""
_RAW_DEFLATE = -15
INPUT = 2**16
"""Bytes that are given to a decoder at once: what it does not take is copied back."""
_STORED_ABOVE = 7.9
"""Bits of entropy a byte above which a block is stored: coding would gain 1% and cost all the time."""
_SAMPLE = 2**14
"""Bytes of a block that its entropy is judged on."""
_RUNS_ABOVE = 0.9
"""Share of one symbol above which runs are worth looking for."""


class PlaneWriter:
    """One plane: bytes in, deflate out. How to code is decided per block: tensors differ."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.length = 0

    def write(self, block: np.ndarray) -> None:
        """Add bytes (u8 [n]) as a deflate stream of their own."""
        part = _deflate(block, *_method(block)) if block.any() else _zeros(len(block))
        self.parts.append(part)
        self.length += len(part)


class PlaneReader:
    """One plane: exactly as many bytes as are asked for, never more (a small file cannot blow up)."""

    def __init__(self, name: str, data: memoryview) -> None:
        self._name = name
        self._data = data
        self._place = 0
        self._decoder = zlib.decompressobj(_RAW_DEFLATE)
        self._begun = False
        """Whether the decoder is in the middle of a stream."""

    def read(self, count: int) -> np.ndarray:
        """The next `count` bytes, u8. WeightError: a stream is broken or the plane ends before."""
        parts = []
        missing = count
        while missing:
            part, progress = self._step(missing)
            if not progress:
                raise WeightError(f"plane {self._name} of a delta ends {missing} bytes early")
            parts.append(part)
            missing -= len(part)
        return np.frombuffer(b"".join(parts), np.uint8)

    def finish(self) -> None:
        """Raise WeightError where anything is left over or cut off."""
        while self._begun or self._place < len(self._data):
            part, progress = self._step(1)
            if part or not progress:
                raise WeightError(f"plane {self._name} of a delta has bytes beyond its last entry, or lacks its end")

    def _step(self, most: int) -> tuple[bytes, bool]:
        """Decode up to `most` bytes of a slice of the input; whether anything was read or written."""
        piece = self._data[self._place : self._place + INPUT]
        try:
            part = self._decoder.decompress(piece, most)
        except zlib.error as error:
            raise WeightError(f"plane {self._name} of a delta: {error}") from error
        ended = self._decoder.eof
        used = len(piece) - len(self._decoder.unused_data if ended else self._decoder.unconsumed_tail)
        self._place += used
        self._begun = not ended and (self._begun or used > 0)
        if ended:
            self._decoder = zlib.decompressobj(_RAW_DEFLATE)
        return part, bool(part or used or ended)


@lru_cache(maxsize=8)
def _zeros(count: int) -> bytes:
    """The stream of a block of zeros: what the high gap bytes nearly always are."""
    return _deflate(np.zeros(count, np.uint8), 9, zlib.Z_DEFAULT_STRATEGY)


def _deflate(block: np.ndarray, level: int, strategy: int) -> bytes:
    coder = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE, 9, strategy)
    return coder.compress(block.data) + coder.flush()


def _method(block: np.ndarray) -> tuple[int, int]:
    """zlib level and strategy for a block."""
    sample = block[:: max(1, len(block) // _SAMPLE)]
    shares = np.bincount(sample, minlength=256) / len(sample)
    seen = shares[shares > 0]
    if float(shares.max()) > _RUNS_ABOVE:
        return 1, zlib.Z_DEFAULT_STRATEGY
    entropy = float(-(seen * np.log2(seen)).sum())
    return (0, zlib.Z_DEFAULT_STRATEGY) if entropy > _STORED_ABOVE else (1, zlib.Z_HUFFMAN_ONLY)
