"""The codec's loops over every element and every change: compiled from kernels.c, or the same in numpy.

Installing the package compiles kernels.c where a C compiler is found; nothing else depends on it. Both ways give the
same bytes (the tests run both). Compiled, a core compares at the speed of memory; numpy takes about twice the time.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE = 64
"""Bytes that are compared at a time."""
CHUNK = 2**19
"""Bytes that numpy compares at once: both sides and the mask stay in a core's cache."""


def _load() -> ctypes.CDLL | None:
    """What was compiled beside this file when the package was installed."""
    for path in sorted(Path(__file__).parent.glob("_kernels.*")):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # of another machine
            continue
    return None


_compiled = _load()


def is_compiled() -> bool:
    return _compiled is not None


def scan(
    old: np.ndarray, new: np.ndarray, begin: int, end: int, next_: int, gaps: np.ndarray, values: np.ndarray
) -> tuple[int, int, int]:
    """Find the elements of [begin, end) that differ; write their gaps (u32) and new values.

    `next_` is the first position that the next entry may have. Returns where it stopped (earlier than `end` where fewer
    than a line of places was left, or as it pleases), the new `next_`, and how many entries were written.
    """
    if _compiled is None:
        return _scan(old, new, begin, min(end, begin + CHUNK // new.itemsize), next_, gaps, values)
    follows, found = ctypes.c_int64(next_), ctypes.c_int64()
    function = _function(f"scan_{new.itemsize}", ctypes.c_int64)
    at = function(
        _pointer(old), _pointer(new), _int(begin), _int(end), ctypes.byref(follows),
        _pointer(gaps), _pointer(values), _int(len(values)), ctypes.byref(found),
    )  # fmt: skip
    return at, follows.value, found.value


def split(numbers: np.ndarray, *, rotate: bool) -> np.ndarray:
    """Unsigned [n] → u8 [size, n]: planes of their bytes, least significant first; rotated left by one bit first."""
    size = numbers.itemsize
    if size == 1:
        return numbers.reshape(1, -1)
    if _compiled is None:
        rotated = (numbers << 1) | (numbers >> (8 * size - 1)) if rotate else numbers
        little = rotated.astype(rotated.dtype.newbyteorder("<"), copy=False)
        return np.ascontiguousarray(little.view(np.uint8).reshape(-1, size).T)
    planes = np.empty((size, len(numbers)), np.uint8)
    _function(f"split_{size}")(_pointer(numbers), _int(len(numbers)), int(rotate), _pointer(planes))
    return planes


def join(planes: Sequence[np.ndarray], *, rotate: bool) -> np.ndarray:
    """The inverse of `split`; as many planes (u8 [n]) as the numbers have bytes."""
    size, count = len(planes), len(planes[0])
    if size == 1:
        return planes[0].copy()
    if _compiled is None:
        table = np.empty((count, size), np.uint8)
        for place, plane in enumerate(planes):
            table[:, place] = plane
        numbers = table.reshape(-1).view(f"<u{size}").astype(f"u{size}", copy=False)
        return (numbers >> 1) | (numbers << (8 * size - 1)) if rotate else numbers
    numbers = np.empty(count, f"u{size}")
    _function(f"join_{size}")(_pointers(planes), _int(count), int(rotate), _pointer(numbers))
    return numbers


def positions(planes: Sequence[np.ndarray], next_: int) -> np.ndarray:
    """Positions (i64, growing) of entries whose gaps (u32) are given in planes; the first may be at `next_`."""
    if _compiled is None:
        steps = join(planes, rotate=False).astype(np.int64) + 1
        steps[0] += next_ - 1
        return np.cumsum(steps)
    found = np.empty(len(planes[0]), np.int64)
    _function("positions", ctypes.c_int64)(_pointers(planes), _int(len(found)), _int(next_), _pointer(found))
    return found


def exchange(elements: np.ndarray, where: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Write values (unsigned, of the elements' size) at growing positions (i64) of a contiguous array that has them.

    Returns what was there.
    """
    if _compiled is None:
        kept: np.ndarray = elements[where]
        elements[where] = values
        return kept
    kept = values.copy()
    _function(f"exchange_{values.itemsize}")(_pointer(elements), _pointer(where), _pointer(kept), _int(len(kept)))
    return kept


def _scan(
    old: np.ndarray, new: np.ndarray, begin: int, end: int, next_: int, gaps: np.ndarray, values: np.ndarray
) -> tuple[int, int, int]:
    """Eight bytes are compared at a time; only words that differ are looked into."""
    size = new.itemsize
    per_word = 8 // size
    shift = per_word.bit_length() - 1
    a, b = old[begin:end], new[begin:end]
    whole = len(b) // per_word * per_word
    a_words, b_words = a[:whole].view(np.uint64), b[:whole].view(np.uint64)
    words = np.flatnonzero(a_words != b_words)
    fresh = b_words[words].view(new.dtype)
    inside = np.flatnonzero(a_words[words].view(new.dtype) != fresh)
    taken = fresh[inside]
    # element = word × per_word + place in the word; shifts, because dividing costs more than all the rest
    found = words[inside >> shift]
    found <<= shift
    inside &= per_word - 1
    found += inside
    if whole < len(b):
        rest = np.flatnonzero(a[whole:] != b[whole:])
        found = np.concatenate((found, rest + whole))
        taken = np.concatenate((taken, b[whole:][rest]))
    found += begin
    if len(found) > len(values):
        end = int(found[len(values)])
        found, taken = found[: len(values)], taken[: len(values)]
    count = len(found)
    if count:
        gaps[0] = found[0] - next_
        np.subtract(found[1:] - 1, found[:-1], out=gaps[1:count], casting="unsafe")
        values[:count] = taken
        next_ = int(found[-1]) + 1
    return end, next_, count


def _function(name: str, result: Any = None) -> Any:
    function = getattr(_compiled, name)
    function.restype = result
    return function


def _int(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(number)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _pointers(planes: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(planes))(*(plane.ctypes.data for plane in planes))
