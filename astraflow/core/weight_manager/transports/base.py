"""What every transport speaks of: a range of bytes that a sender lends, and the fetching of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Bulk:
    """Sending side: bytes of a file that may be overwritten at any time by a publisher who does not wait."""

    fd: int
    offset: int
    """First byte in the file."""
    length: int
    intact: Callable[[], bool]
    """Whether the bytes are still those that were offered."""


@dataclass(frozen=True)
class Grant:
    """Receiving side: what a sender agreed to transfer, and where it is found."""

    host: str
    version: int
    length: int
    """Bytes."""
    port: int = 0
    """Of the bulk streams (tcp)."""
    ticket: bytes = b""
    """16 bytes that name the transfer on the bulk streams (tcp)."""
    path: str | None = None
    """The shared segment (shm), or a file in a shared folder (disk)."""
    offset: int = 0
    """First byte of the version in it."""


class Fetch(Protocol):
    """One transfer into a buffer of grant.length bytes. Blocking: it runs in a thread beside generation."""

    def __init__(self, grant: Grant, into: memoryview, deadline: float) -> None: ...

    def run(self) -> bool:
        """Fetch. False: the version was overwritten meanwhile, restart on the newest.

        PeerError where the sender cannot be reached or breaks the protocol, DeadlineError when time is up, WeightError
        where the transport is impossible here.
        """
        ...

    def cancel(self) -> None:
        """Make `run` end soon, from another thread."""
        ...
