"""Files that outlive whoever wrote them. Invariant: a reader meets whole records only, whatever died or was full.

A file that grows is a `LineFile`: what a killed writer left after the last newline is cut off when the file is opened
and before each append, and an append that the disk has no room for is taken back. Several processes may append to one
file; a lock on it keeps them apart. A file that is written once, or anew, is `write_whole`.

Standard library only: hooks of coding agents import it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 1 << 16
FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class LineFile:
    """A file of lines that is open for appending."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open or create it, and cut off what follows the last line. OSError where that is impossible."""
        self._descriptor: int | None = os.open(path, FLAGS, 0o644)
        with _locked(self._descriptor):
            _cut(self._descriptor)

    def append(self, lines: bytes) -> None:
        """Append whole lines, each with its newline: all of them, or none and OSError. ValueError after `close`."""
        if self._descriptor is None:
            raise ValueError("the file is closed")
        append_lines(self._descriptor, lines)

    def close(self) -> None:
        """Give the file back; again is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def append_lines(descriptor: int, lines: bytes) -> None:
    """Append whole lines to a file that was opened with `FLAGS`: all of them, or none and OSError."""
    with _locked(descriptor):
        end = _cut(descriptor)
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            os.ftruncate(descriptor, end)
            raise


def write_whole(path: Path, data: bytes, *, fsync: bool = False) -> None:
    """Put `data` at `path` so that a reader, or a kill at any moment, meets the old content or the new one.

    fsync: so does the death of the machine. OSError where there is no room; then the old content is there.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)  # a pipe or a device takes no other in its place
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            if fsync:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _cut(descriptor: int) -> int:
    """Cut off what follows the last newline; returns where the file ends now."""
    end = whole = os.fstat(descriptor).st_size
    size = 1  # nearly always enough: the last byte is a newline
    while whole:
        start = max(0, whole - size)
        found = os.pread(descriptor, whole - start, start).rfind(b"\n") + 1
        whole = start + found
        if found:
            break
        size = BLOCK
    if whole != end:
        os.ftruncate(descriptor, whole)
    return whole
