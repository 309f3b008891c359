"""A shared folder: the version is read from the file that the sender's reply names (see version_folder).

The folder has its name only when it is complete, and nothing in it changes afterwards; digests prove it.
"""

from __future__ import annotations

import os
import time

from astraflow.core.weight_manager.transports.base import Grant
from astraflow.errors import DeadlineError, PeerError, WeightError

CHUNK = 16 * 2**20
"""Bytes between two looks at deadline and cancellation."""


class DiskFetch:
    """Copies a version out of a file."""

    def __init__(self, grant: Grant, into: memoryview, deadline: float) -> None:
        self._grant = grant
        self._into = into
        self._deadline = deadline
        self._cancelled = False

    def run(self) -> bool:
        grant = self._grant
        if grant.path is None:
            raise WeightError(f"the sender at {grant.host} names no file for version {grant.version}")
        try:
            fd = os.open(grant.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if os.path.isdir(os.path.dirname(os.path.dirname(grant.path))):
                return False  # removed since it was granted
            raise WeightError(f"the sender's folder of {grant.path} is not here: disk needs a shared folder") from None
        except OSError as error:
            raise WeightError(f"{grant.path} cannot be opened: {error.strerror}") from error
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
                raise DeadlineError(f"version {grant.version}: {done} of {grant.length} bytes were read from disk")
            count = os.preadv(fd, [self._into[done : done + CHUNK]], grant.offset + done)
            if count == 0:
                raise PeerError(f"{grant.path} ends at byte {done} of {grant.length}: it is not all of the version")
            done += count
        return True
