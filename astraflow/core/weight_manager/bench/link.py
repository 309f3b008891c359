"""A slow network in front of a sender: every byte passes one token bucket and arrives half a round trip later.

    receiver ──► forwarded port ──► Pipe (delay) ──► sender
             ◄──                ◄── Pipe (bucket, delay) ◄──

One bucket for all connections and both kinds of traffic, as on a real line; per direction a thread reads, one writes.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

CHUNK = 2**18


class TokenBucket:
    """Lets `rate` bytes a second pass, in bursts of at most `burst`."""

    def __init__(self, rate: float, burst: float = 2**20) -> None:
        self._rate = rate
        self._burst = burst
        self._lock = threading.Lock()
        self._free_at = 0.0
        """When everything that was let through will have passed."""

    def take(self, count: int) -> float:
        """Account for `count` bytes; returns the time.monotonic() at which the last of them has passed."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - self._burst / self._rate) + count / self._rate
            return self._free_at


class SlowLink:
    """Forwards ports of a sender through one slow line. `reach` is what a Receiver takes."""

    def __init__(self, rate: float, round_trip_s: float) -> None:
        self._bucket = TokenBucket(rate)
        self._delay = round_trip_s / 2
        self._ports: dict[tuple[str, int], socket.socket] = {}
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def reach(self, host: str, port: int) -> tuple[str, int]:
        """The address at which host:port is found behind the line."""
        if (host, port) not in self._ports:
            listener = socket.create_server(("127.0.0.1", 0))
            self._ports[host, port] = listener
            self._start(self._accept, listener, host, port)
        return "127.0.0.1", self._ports[host, port].getsockname()[1]

    def close(self) -> None:
        """Cut everything off; returns when no thread is left."""
        while self._threads:
            for connection in (*self._ports.values(), *self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            self._threads.pop().join()
        for connection in (*self._ports.values(), *self._connections):
            connection.close()
        self._ports.clear()
        self._connections.clear()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, name="slow-link", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket, host: str, port: int) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return  # closed
            self._connections.append(near)
            self._start(self._connect, near, host, port)

    def _connect(self, near: socket.socket, host: str, port: int) -> None:
        time.sleep(2 * self._delay)  # the handshake crosses the line once each way
        far = socket.create_connection((host, port))
        self._connections.append(far)
        for connection in (near, far):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pipe(near, far, None)
        self._pipe(far, near, self._bucket)

    def _pipe(self, source: socket.socket, target: socket.socket, bucket: TokenBucket | None) -> None:
        # bounded by what is on the way: rate × delay, and no more than a socket's buffers hold beyond
        waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(maxsize=64)
        self._start(self._read, source, waiting, bucket)
        self._start(_write, target, waiting)

    def _read(
        self, source: socket.socket, waiting: queue.Queue[tuple[float, bytes]], bucket: TokenBucket | None
    ) -> None:
        while True:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            passed = time.monotonic() if bucket is None else bucket.take(len(data))
            waiting.put((passed + self._delay, data))
            if not data:
                return


def _write(target: socket.socket, waiting: queue.Queue[tuple[float, bytes]]) -> None:
    while True:
        due, data = waiting.get()
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            if data:
                target.sendall(data)
            else:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other side is gone: what still comes is thrown away, until its end
        if not data:
            return
