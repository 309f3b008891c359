"""TCP connections whose request is awaited: they cost a descriptor each, no thread, and only for a while."""

from __future__ import annotations

import selectors
import socket
import time

MAX_SILENT = 256
"""Connections that may be without a request at once; then the oldest is closed."""
REQUEST_S = 10.0
"""A peer whose request is not whole after so long is closed; receivers send it as soon as they are connected."""


class AwaitedRequests:
    """Connections that have not sent a whole request, the oldest first."""

    def __init__(self, selector: selectors.BaseSelector, size: int) -> None:
        """Take requests of `size` bytes; `selector` gets each connection as the data of its key."""
        self._selector = selector
        self._size = size
        self._heard: dict[socket.socket, bytearray] = {}
        self._deadlines: dict[socket.socket, float] = {}

    def add(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, connection)
        self._heard[connection] = bytearray()
        self._deadlines[connection] = time.monotonic() + REQUEST_S
        if len(self._heard) > MAX_SILENT:
            self.drop_oldest()

    def read(self, connection: socket.socket) -> bytes | None:
        """Return the request once it is whole; then, or where the peer has gone, the connection is silent no more."""
        if connection not in self._heard:
            return None  # dropped since the selector saw it
        heard = self._heard[connection]
        try:
            part = connection.recv(self._size - len(heard))
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        heard += part
        if not part:
            self._drop(connection)
        if len(heard) < self._size:
            return None
        self._forget(connection)
        return bytes(heard)

    def wait_s(self) -> float | None:
        """Return the seconds until the oldest is late; None without one."""
        first = next(iter(self._deadlines.values()), None)
        return None if first is None else max(0.0, first - time.monotonic())

    def drop_late(self) -> None:
        now = time.monotonic()
        while self._deadlines and next(iter(self._deadlines.values())) <= now:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Close the oldest; False where there is none."""
        for connection in self._deadlines:
            self._drop(connection)
            return True
        return False

    def drop_all(self) -> None:
        while self.drop_oldest():
            pass

    def _drop(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._heard[connection], self._deadlines[connection]
