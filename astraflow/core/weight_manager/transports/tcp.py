"""Bulk bytes over TCP: framed, acknowledged, resumable, several streams at once.

    receiver → sender   ticket 16 bytes, offset u64, length u64      one range of the version
    sender → receiver   {offset u64, length u64} and `length` bytes  repeated; sent without a copy (sendfile)
    receiver → sender   count u64                                    acknowledges the whole range
    sender → receiver   {DONE, 0}                                    it was intact until it was acknowledged
    sender → receiver   {CUT, 0} instead of any frame                it was overwritten: restart on the newest

All integers little-endian; offsets count from the version's first byte. A sender keeps no state between connections:
parallel streams are ranges side by side, and resuming after a cut line is asking for what is missing. sendfile hands
pages, not copies, to the network stack, so bytes may still change between send and receipt: that is why the sender
looks again after the acknowledgement before it says DONE. Digests are compared by the receiver in any case.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from astraflow.core.weight_manager.transports.base import Bulk, Grant
from astraflow.errors import CallerError, DeadlineError, PeerError

log = logging.getLogger(__name__)

REQUEST = struct.Struct("<16sQQ")
FRAME = struct.Struct("<QQ")
COUNT = struct.Struct("<Q")
CUT = 2**64 - 1
DONE = 2**64 - 2

CHUNK = 8 * 2**20
"""Bytes a frame: how much may be sent between two looks at whether the version still exists."""
STALL_S = 30.0
"""A peer that moves no byte for so long is given up."""
MAX_STREAMS = 256
"""Connections served at once; more wait for a place."""
HELLO_S = 5.0
"""Seconds without a byte after which a connection that has not said its ticket is given up. The ticket is what admits a
receiver: until it is there, a connection holds its place only while nobody else needs one."""
STREAMS = 2
"""Parallel streams of one fetch."""
STREAM_MIN = 16 * 2**20
"""Bytes below which another stream does not pay for its connection."""
RETRIES = 4
"""Attempts in a row without progress before a fetch fails; the wait doubles from RETRY_WAIT_S."""
RETRY_WAIT_S = 0.05
ACCEPT_WAIT_S = 0.05
"""Until a connection is accepted again after one could not be."""


class BulkServer:
    """Sending side: serves ranges of what `find(ticket)` returns, a thread a connection."""

    def __init__(self, host: str, find: Callable[[bytes], Bulk | None]) -> None:
        self._find = find
        self._places = threading.BoundedSemaphore(MAX_STREAMS)
        self._silent: dict[socket.socket, None] = {}
        """Connections that have not said what they want, the oldest first."""
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.bind((host, 0))
        except OSError as error:
            self._socket.close()
            raise CallerError(f"cannot listen on {host}: {error.strerror}") from error
        self._socket.listen(MAX_STREAMS)
        self.port: int = self._socket.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, name="bulk-accept", daemon=True)
        self._streams: dict[socket.socket, threading.Thread] = {}
        self._closing = threading.Event()

    def start(self) -> None:
        self._accepting.start()

    def close(self) -> None:
        """Stop accepting and cut the streams in progress; afterwards no thread reads what was lent."""
        self._closing.set()
        _wake(self._socket)
        self._socket.close()
        self._accepting.join()
        for connection, thread in list(self._streams.items()):
            _wake(connection)
            thread.join()

    def _accept(self) -> None:
        refused = False
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError as error:  # closed, or no descriptor is free just now
                if not (refused or self._closing.is_set()):
                    log.warning("a weight stream cannot be accepted, and is tried again: %s", error.strerror)
                refused = True
                self._closing.wait(ACCEPT_WAIT_S)
                continue
            refused = False
            if not self._place():
                connection.close()
                continue
            with self._lock:
                self._silent[connection] = None
            thread = threading.Thread(target=self._serve, args=(connection,), name="bulk-stream", daemon=True)
            self._streams[connection] = thread
            thread.start()

    def _place(self) -> bool:
        """Wait for a place; the oldest connection that has said nothing makes room. False where the server ends."""
        free = self._places.acquire(blocking=False)
        while not (free or self._closing.is_set()):
            with self._lock:
                oldest = next(iter(self._silent), None)
                if oldest is not None:
                    del self._silent[oldest]
                    _wake(oldest)
            free = self._places.acquire(timeout=ACCEPT_WAIT_S)
        return free

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(HELLO_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._send_range(connection)
        except OSError:
            pass  # the receiver went away or stalls; it resumes or gives up by itself
        finally:
            with self._lock:
                self._silent.pop(connection, None)
            del self._streams[connection]
            self._places.release()

    def _send_range(self, connection: socket.socket) -> None:
        ticket, offset, length = REQUEST.unpack(_receive_exactly(connection, REQUEST.size))
        bulk = self._find(ticket)
        if bulk is not None:
            with self._lock:
                self._silent.pop(connection, None)
        connection.settimeout(STALL_S)
        if bulk is None or offset + length > bulk.length or not _send_frames(connection, bulk, offset, length):
            connection.sendall(FRAME.pack(CUT, 0))
            return
        acknowledged = COUNT.unpack(_receive_exactly(connection, COUNT.size))[0] == length
        connection.sendall(FRAME.pack(DONE if acknowledged and bulk.intact() else CUT, 0))


class TcpFetch:
    """Receiving side: fetches a version in parallel ranges, each resumed where it was cut."""

    def __init__(self, grant: Grant, into: memoryview, deadline: float) -> None:
        self._grant = grant
        self._into = into
        self._deadline = deadline
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def run(self) -> bool:
        ranges = split(self._grant.length)
        if len(ranges) == 1:
            return self._fetch_range(*ranges[0])
        with ThreadPoolExecutor(len(ranges), thread_name_prefix="weight-stream") as threads:
            streams = [threads.submit(self._fetch_range, *one) for one in ranges]
            try:
                return all(stream.result() for stream in streams)
            except BaseException:
                self.cancel()  # the other streams need not go on
                raise

    def cancel(self) -> None:
        self._ended.set()
        with self._lock:
            for connection in self._open:
                _wake(connection)

    def _fetch_range(self, start: int, end: int) -> bool:
        """Fetch bytes [start, end); False where the version is gone."""
        position, failures = start, 0
        while True:
            attempt = _Stream(self._grant, self._into, position, end, self._deadline)
            try:
                with self._connection() as connection:
                    return attempt.run(connection)
            except OSError as error:
                failures = 0 if attempt.position > position else failures + 1
                position = attempt.position
                self._pause(failures, end - position, error)

    def _pause(self, failures: int, missing: int, error: OSError) -> None:
        """Wait before the next attempt, or say that there is none."""
        where = f"{self._grant.host}:{self._grant.port}"
        if self._ended.is_set():
            raise DeadlineError(f"the transfer from {where} was cancelled, {missing} bytes were missing")
        wait = RETRY_WAIT_S * 2**failures if failures else 0.0
        if time.monotonic() + wait >= self._deadline:
            raise DeadlineError(
                f"version {self._grant.version} from {where}: time is up, {missing} bytes are missing ({error})"
            )
        if failures >= RETRIES:
            raise PeerError(
                f"version {self._grant.version} from {where}: {error}, {failures} times in a row"
            ) from error
        self._ended.wait(wait)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        remaining = max(self._deadline - time.monotonic(), 0.001)
        timeout = min(STALL_S, remaining)
        connection = socket.create_connection((self._grant.host, self._grant.port), timeout=timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open.add(connection)
            if self._ended.is_set():
                raise ConnectionAbortedError("cancelled")
            yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


def _wake(connection: socket.socket) -> None:
    """End what another thread does with a socket."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Stream:
    """One attempt at a range; `position` says how far it came."""

    def __init__(self, grant: Grant, into: memoryview, start: int, end: int, deadline: float) -> None:
        self._grant = grant
        self._into = into
        self._deadline = deadline
        self._start = start
        self._end = end
        self.position = start

    def run(self, connection: socket.socket) -> bool:
        connection.sendall(REQUEST.pack(self._grant.ticket, self._start, self._end - self._start))
        while self.position < self._end:
            offset, length = FRAME.unpack(_receive_exactly(connection, FRAME.size))
            if offset == CUT:
                return False
            if offset != self.position or not 0 < length <= self._end - offset:
                raise PeerError(f"the sender sent bytes {offset}+{length} where {self.position}..{self._end} were due")
            self._receive(connection, offset + length)
        connection.sendall(COUNT.pack(self._end - self._start))
        last, _ = FRAME.unpack(_receive_exactly(connection, FRAME.size))
        if last not in (CUT, DONE):
            raise PeerError(f"the sender ended a range with {last}")
        return bool(last == DONE)

    def _receive(self, connection: socket.socket, end: int) -> None:
        while self.position < end:
            count = connection.recv_into(self._into[self.position : end])
            if count == 0:
                raise ConnectionError("the stream ended early")
            self.position += count
            if time.monotonic() > self._deadline:
                raise TimeoutError("the stream is too slow")


def split(length: int, streams: int = STREAMS) -> list[tuple[int, int]]:
    """Ranges [start, end) for parallel streams, none much shorter than STREAM_MIN."""
    count = min(streams, max(1, length // STREAM_MIN))
    bounds = [length * i // count for i in range(count + 1)]
    return list(itertools.pairwise(bounds))


def _send_frames(connection: socket.socket, bulk: Bulk, offset: int, length: int) -> bool:
    """Send a range as frames; False as soon as the bytes are no longer those offered."""
    end = offset + length
    with io.FileIO(os.dup(bulk.fd)) as file:
        while offset < end:
            if not bulk.intact():
                return False
            count = min(CHUNK, end - offset)
            connection.sendall(FRAME.pack(offset, count), socket.MSG_MORE if hasattr(socket, "MSG_MORE") else 0)
            connection.sendfile(file, bulk.offset + offset, count)
            offset += count
    return bulk.intact()


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the peer closed the stream")
        data += part
    return data
