"""How bulk bytes move from sender to receiver. One file a transport, one Protocol, one contract suite."""

from __future__ import annotations

from astraflow.core.weight_manager.transports.base import Bulk, Fetch, Grant
from astraflow.core.weight_manager.transports.disk import DiskFetch
from astraflow.core.weight_manager.transports.shm import ShmFetch
from astraflow.core.weight_manager.transports.tcp import TcpFetch
from astraflow.errors import UnknownNameError

__all__ = ["TRANSPORTS", "Bulk", "Fetch", "Grant", "open_fetch"]

TRANSPORTS: dict[str, type[Fetch]] = {"tcp": TcpFetch, "shm": ShmFetch, "disk": DiskFetch}


def open_fetch(transport: str, grant: Grant, into: memoryview, deadline: float) -> Fetch:
    """Prepare to fetch what was granted into a buffer; `deadline` is a time.monotonic()."""
    if transport not in TRANSPORTS:
        raise UnknownNameError("weight transport", transport, list(TRANSPORTS))
    return TRANSPORTS[transport](grant, into, deadline)
