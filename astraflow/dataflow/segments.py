"""Trajectory payloads in append-only files beside the ledger: `segments/%08d`.

A payload is referenced by (segment, offset, length, checksum). A segment whose payloads are all released is deleted;
groups leave in about the order in which they came, so few files stay. A process that was killed, or found the disk
full, leaves at most a torn end that nothing refers to: a new process always begins a new file.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from astraflow.errors import DataError

SEGMENT_BYTES = 32 * 2**20
"""A file that has grown beyond this is followed by a new one."""

_NAME = re.compile(r"\d{8}")


class Ref(msgspec.Struct, frozen=True):
    """Where a payload lies."""

    segment: int
    offset: int
    length: int
    checksum: int
    """CRC-32 of the bytes."""


class Segments:
    """The files of one ledger; used from one thread at a time."""

    def __init__(
        self, directory: Path, refs: Iterable[Ref] = (), segment_bytes: int = SEGMENT_BYTES, *, reading: bool = False
    ) -> None:
        """refs: the payloads that are referenced already; files without any are deleted. reading: nothing changes."""
        self._directory = directory
        self._limit = segment_bytes
        self._live = Counter(ref.segment for ref in refs)
        directory.mkdir(parents=True, exist_ok=True)
        found = [int(path.name) for path in directory.iterdir() if _NAME.fullmatch(path.name)]
        # a file that is referenced may be gone; its number is not used for another one
        self._number = max([*found, *self._live], default=0)
        self._file: BinaryIO | None = None
        self._named = False
        for number in found:
            if not self._live[number] and not reading:
                self._path(number).unlink()

    def append(self, payload: bytes) -> Ref:
        """Add a payload; it is in the file once `flush` has returned."""
        if self._file is None or self._file.tell() >= self._limit:
            self._begin()
        assert self._file is not None
        ref = Ref(self._number, self._file.tell(), len(payload), zlib.crc32(payload))
        self._file.write(payload)
        self._live[ref.segment] += 1
        return ref

    def flush(self, fsync: bool = False) -> None:
        """Hand over to the operating system, which a killed process survives; `fsync`: to the disk."""
        if self._file is not None:
            self._file.flush()
            if fsync:
                os.fdatasync(self._file.fileno())
                self._sync_names()

    def _sync_names(self) -> None:
        """A new file's name is on the disk, too."""
        if self._named:
            return
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._named = True

    def read(self, ref: Ref) -> bytes:
        """The payload. DataError where the file is gone or its bytes are not what was written."""
        try:
            with self._path(ref.segment).open("rb") as file:
                file.seek(ref.offset)
                payload = file.read(ref.length)
        except FileNotFoundError as error:
            raise DataError(f"segment {self._path(ref.segment)} is missing") from error
        if len(payload) != ref.length or zlib.crc32(payload) != ref.checksum:
            raise DataError(f"segment {self._path(ref.segment)} is damaged at byte {ref.offset}")
        return payload

    def release(self, refs: Iterable[Ref]) -> None:
        """Payloads are not referenced any more; files that hold no other are deleted."""
        for ref in refs:
            self._live[ref.segment] -= 1
            if not self._live[ref.segment]:
                del self._live[ref.segment]
                if ref.segment != self._number or self._file is None:
                    self._path(ref.segment).unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            # what it could not write, on a full disk, was never committed
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _begin(self) -> None:
        if self._file is not None:
            # `flush` will not come to it any more
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._file.close()
            if not self._live[self._number]:
                self._path(self._number).unlink(missing_ok=True)
        self._number += 1
        self._named = False
        self._file = self._path(self._number).open("xb")

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:08d}"
