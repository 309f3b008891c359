"""What is particular to shared memory: a segment that is not there."""

from __future__ import annotations

import time

import pytest

from astraflow.core.weight_manager.segment import DoubleBuffer, path_of
from astraflow.core.weight_manager.transports.base import Grant
from astraflow.core.weight_manager.transports.shm import ShmFetch
from astraflow.errors import PeerError, WeightError


def fetch(path: str | None, length: int = 10, offset: int = 4096) -> bool:
    grant = Grant(host="127.0.0.1", version=1, length=length, path=path, offset=offset)
    return ShmFetch(grant, memoryview(bytearray(length)), time.monotonic() + 60).run()


def test_a_sender_without_a_segment_is_refused() -> None:
    with pytest.raises(WeightError, match=r"the sender at 127.0.0.1 shares no memory segment"):
        fetch(None)


def test_a_segment_of_another_host_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(WeightError, match=r"cannot be opened .*same host and user and a living sender; use tcp"):
        fetch("/proc/1/fd/987654")


def test_a_segment_that_is_too_short_is_an_error() -> None:
    buffer = DoubleBuffer.create(10)
    buffer.finish(1, 1)
    with pytest.raises(PeerError, match="ends at byte"):
        fetch(path_of(buffer.fd), 10_000, buffer.offset(1))
    buffer.close()
