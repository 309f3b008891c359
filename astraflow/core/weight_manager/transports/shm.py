"""Shared memory on one host: the version is read straight from the sender's double buffer.

Reading through the descriptor instead of a mapping copies at the speed of memory, frees the interpreter lock, and
cannot fault. The marks before and after tell whether the trainer overwrote the half meanwhile (see segment).
"""

from __future__ import annotations

import os
import time

from astraflow.core.weight_manager.segment import read_mark
from astraflow.core.weight_manager.transports.base import Grant
from astraflow.errors import DeadlineError, PeerError, WeightError

CHUNK = 16 * 2**20
"""Bytes between two looks at mark, deadline and cancellation."""


class ShmFetch:
    """Copies a version out of the sender's segment."""

    def __init__(self, grant: Grant, into: memoryview, deadline: float) -> None:
        self._grant = grant
        self._into = into
        self._deadline = deadline
        self._cancelled = False

    def run(self) -> bool:
        grant = self._grant
        if grant.path is None:
            raise WeightError(f"the sender at {grant.host} shares no memory segment")
        try:
            fd = os.open(grant.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise WeightError(
                f"the sender's segment {grant.path} cannot be opened ({error.strerror}): shared memory needs the same "
                "host and user and a living sender; use tcp otherwise"
            ) from error
        try:
            return self._copy(fd)
        finally:
            os.close(fd)

    def cancel(self) -> None:
        self._cancelled = True

    def _copy(self, fd: int) -> bool:
        grant, done = self._grant, 0
        while done < grant.length:
            if self._cancelled or time.monotonic() > self._deadline:
                raise DeadlineError(
                    f"version {grant.version}: {done} of {grant.length} bytes were read from shared memory"
                )
            if read_mark(fd, grant.offset) != grant.version:
                return False
            count = os.preadv(fd, [self._into[done : done + CHUNK]], grant.offset + done)
            if count == 0:
                raise PeerError(f"the sender's segment ends at byte {done} of version {grant.version}")
            done += count
        return read_mark(fd, grant.offset) == grant.version
