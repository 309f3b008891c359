"""Double buffer in shared memory: a reader never mistakes a half-written version for a whole one.

Each half is preceded by a page that holds one mark: the number of the version that lies in it, or WRITING while the
trainer overwrites it. Numbers never repeat in a run, so a reader that finds the same number before and after its
copy has copied one version; the digests prove it. The writer asks nobody and waits for nobody.

The memory is anonymous (memfd): it has a descriptor that the agent inherits and receivers on the host open through
/proc, and no name. So nothing can be left behind, whatever is killed in whatever order.

    half h:  [ page: mark int64 | … ][ version bytes, padded to pages ]
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import sys
import tempfile

PAGE = mmap.PAGESIZE
WRITING = -1
HALVES = 2
_MARK = struct.Struct("<q")


class DoubleBuffer:
    """Two halves of `length` bytes. The creator writes; whoever attaches reads."""

    def __init__(self, fd: int, length: int, *, writable: bool, ours: bool = False) -> None:
        self.fd = fd
        self.length = length
        self._stride = PAGE + -(-max(length, 1) // PAGE) * PAGE
        if ours:
            os.truncate(fd, HALVES * self._stride)
            _forbid_resizing(fd)
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # pages are faulted in now, not while the trainer waits for its first copies
        flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if writable else 0)
        self._map = mmap.mmap(fd, HALVES * self._stride, flags=flags, prot=access)
        self._view = memoryview(self._map)
        if ours:
            for half in range(HALVES):
                self.begin(half)

    @classmethod
    def create(cls, length: int) -> DoubleBuffer:
        """Allocate the memory of both halves."""
        return cls(anonymous_file(), length, writable=True, ours=True)

    @classmethod
    def join(cls, fd: int, length: int) -> DoubleBuffer:
        """Map what another process created, to write beside it; marks are the creator's business."""
        return cls(fd, length, writable=True)

    @classmethod
    def attach(cls, fd: int, length: int) -> DoubleBuffer:
        """Map what another process created; the descriptor was inherited."""
        return cls(fd, length, writable=False)

    def offset(self, half: int) -> int:
        """First byte of a half in the segment; its mark is one page before."""
        return half * self._stride + PAGE

    def half(self, half: int) -> memoryview:
        """The `length` bytes of a half."""
        return self._view[self.offset(half) : self.offset(half) + self.length]

    def begin(self, half: int) -> None:
        """Cut off the readers of a half: from now on its version is gone."""
        _MARK.pack_into(self._map, self.offset(half) - PAGE, WRITING)

    def finish(self, half: int, version: int) -> None:
        """Say that a half holds all of `version`."""
        _MARK.pack_into(self._map, self.offset(half) - PAGE, version)

    def version_in(self, half: int) -> int:
        """The version that lies whole in a half, or WRITING."""
        return int(_MARK.unpack_from(self._map, self.offset(half) - PAGE)[0])

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the last view of it."""
        with contextlib.suppress(BufferError):  # tensors over the halves may be alive; their collection unmaps
            self._view.release()
            self._map.close()
        os.close(self.fd)


def write_mark(fd: int, offset: int, version: int) -> None:
    """Mark what begins at `offset` of another file in the same way."""
    os.pwrite(fd, _MARK.pack(version), offset - PAGE)


def read_mark(fd: int, offset: int) -> int:
    """The mark of the half that begins at `offset`, read through a descriptor."""
    return int(_MARK.unpack(os.pread(fd, _MARK.size, offset - PAGE))[0])


def path_of(fd: int) -> str:
    """A path under which other processes of this user and host can open the segment while this process lives."""
    return f"/proc/{os.getpid()}/fd/{fd}"


def anonymous_file(name: str = "astraflow-weights") -> int:
    """Descriptor of memory without a place in any folder; `name` is only seen in /proc."""
    if sys.platform == "linux":
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:  # has no name either
        return os.dup(file.fileno())


def _forbid_resizing(fd: int) -> None:
    """A segment that cannot shrink cannot fault its readers (SIGBUS)."""
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
