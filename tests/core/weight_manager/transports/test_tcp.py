"""What is particular to TCP: framing, resuming after a cut line, peers that break the protocol."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from astraflow.core.weight_manager.transports import tcp
from astraflow.core.weight_manager.transports.base import Bulk, Grant
from astraflow.core.weight_manager.transports.tcp import CUT, DONE, FRAME, REQUEST, BulkServer, TcpFetch, split
from astraflow.errors import DeadlineError, PeerError

DATA = os.urandom(50_000)
TICKET = b"t" * 16

Serve = Callable[[Callable[[socket.socket, int], None]], int]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "CHUNK", 4096)
    monkeypatch.setattr(tcp, "RETRY_WAIT_S", 0.001)


@pytest.fixture
def server() -> Iterator[BulkServer]:
    fd = os.memfd_create("test")
    os.write(fd, b"before" + DATA + b"after")
    bulk = Bulk(fd, 6, len(DATA), lambda: True)
    server = BulkServer("127.0.0.1", lambda ticket: bulk if ticket == TICKET else None)
    server.start()
    yield server
    server.close()
    os.close(fd)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve connections with a function of the connection and its number, and return the port."""
    stack = contextlib.ExitStack()

    def start(handler: Callable[[socket.socket, int], None]) -> int:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def loop() -> None:
            number = 0
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    handler(connection, number)
                number += 1

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        return int(listener.getsockname()[1])

    with stack:
        yield start


def fetch(port: int, into: bytearray, seconds: float = 60.0) -> bool:
    grant = Grant(host="127.0.0.1", version=1, length=len(into), port=port, ticket=TICKET)
    return TcpFetch(grant, memoryview(into), time.monotonic() + seconds).run()


def ask(port: int, ticket: bytes, offset: int, length: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(REQUEST.pack(ticket, offset, length))
    return connection


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            break
        data += part
    return data


def test_the_wire_is_as_documented(server: BulkServer) -> None:
    with ask(server.port, TICKET, 100, 5000) as connection:
        assert FRAME.unpack(read(connection, 16)) == (100, 4096)
        assert read(connection, 4096) == DATA[100:4196]
        assert FRAME.unpack(read(connection, 16)) == (4196, 904)
        assert read(connection, 904) == DATA[4196:5100]
        connection.sendall((5000).to_bytes(8, "little"))
        assert FRAME.unpack(read(connection, 16)) == (DONE, 0)
        assert read(connection, 1) == b""


@pytest.mark.parametrize(("ticket", "offset", "length"), [(b"x" * 16, 0, 10), (TICKET, 0, 50_001), (TICKET, 50_000, 1)])
def test_what_was_not_granted_is_not_sent(server: BulkServer, ticket: bytes, offset: int, length: int) -> None:
    with ask(server.port, ticket, offset, length) as connection:
        assert FRAME.unpack(read(connection, 16)) == (CUT, 0)
        assert read(connection, 1) == b""


def test_a_wrong_acknowledgement_is_not_done(server: BulkServer) -> None:
    with ask(server.port, TICKET, 0, 10) as connection:
        read(connection, 26)
        connection.sendall((9).to_bytes(8, "little"))
        assert FRAME.unpack(read(connection, 16)) == (CUT, 0)


def test_connections_that_say_nothing_keep_no_receiver_out(server: BulkServer) -> None:
    """None of them has shown a ticket: each holds a place only while nobody else needs it."""
    with contextlib.ExitStack() as stack:
        for _ in range(256):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        into = bytearray(len(DATA))
        assert fetch(server.port, into, 20.0)
        assert bytes(into) == DATA


def test_a_ticket_that_is_none_holds_no_place_either(server: BulkServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(256):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(REQUEST.pack(b"x" * 16, 0, 1)[:-1])
        into = bytearray(len(DATA))
        assert fetch(server.port, into, 20.0)


def test_more_receivers_than_there_are_places_wait_for_one(server: BulkServer) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(ask(server.port, TICKET, 0, 4096)) for _ in range(256)]
        for connection in held:
            read(connection, FRAME.size + 4096)  # served, and not acknowledged yet
        into = bytearray(len(DATA))
        results: list[bool] = []
        fetching = threading.Thread(target=lambda: results.append(fetch(server.port, into, 20.0)))
        fetching.start()
        time.sleep(0.3)  # longer than all attempts of a fetch that is turned away
        for connection in held:
            connection.sendall((4096).to_bytes(8, "little"))
        fetching.join(20.0)
        assert results == [True]
        assert bytes(into) == DATA


def test_a_cut_line_is_resumed_where_it_broke(serve: Serve) -> None:
    """Each connection dies after 3,000 more bytes, in the middle of a frame; nothing is sent twice."""
    asked: list[tuple[int, int]] = []

    def cutting(connection: socket.socket, number: int) -> None:
        _, offset, length = REQUEST.unpack(read(connection, REQUEST.size))
        asked.append((offset, length))
        connection.sendall(FRAME.pack(offset, length) + DATA[offset : offset + min(length, 3000)])
        if length <= 3000:
            read(connection, 8)
            connection.sendall(FRAME.pack(DONE, 0))

    into = bytearray(10_000)
    assert fetch(serve(cutting), into)
    assert into == DATA[:10_000]
    assert asked == [(0, 10_000), (3000, 7000), (6000, 4000), (9000, 1000)]


def test_a_sender_that_only_hangs_up_is_given_up(serve: Serve) -> None:
    with pytest.raises(PeerError, match=r"version 1 from 127.0.0.1:\d+: .*, 4 times in a row"):
        fetch(serve(lambda connection, number: None), bytearray(10))


def test_a_sender_that_is_not_there_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(PeerError, match=r"Connection refused, 4 times in a row"):
        fetch(port, bytearray(10))


def test_a_sender_that_stalls_ends_at_the_deadline(serve: Serve) -> None:
    def silent(connection: socket.socket, number: int) -> None:
        read(connection, 1000)

    with pytest.raises(DeadlineError, match="10 bytes are missing"):
        fetch(serve(silent), bytearray(10), seconds=0.1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (FRAME.pack(5, 5), r"sent bytes 5\+5 where 0\.\.10 were due"),
        (FRAME.pack(0, 11), r"sent bytes 0\+11 where 0\.\.10 were due"),
        (FRAME.pack(0, 0), r"sent bytes 0\+0"),
        (FRAME.pack(0, 10) + bytes(10) + FRAME.pack(3, 3), "ended a range with 3"),
    ],
)
def test_a_sender_that_breaks_the_protocol_is_an_error(serve: Serve, answer: bytes, words: str) -> None:
    def broken(connection: socket.socket, number: int) -> None:
        connection.sendall(answer)
        read(connection, 1000)

    with pytest.raises(PeerError, match=words):
        fetch(serve(broken), bytearray(10))


def test_ranges_cover_everything_once() -> None:
    assert split(0) == [(0, 0)]
    assert split(tcp.STREAM_MIN) == [(0, tcp.STREAM_MIN)]
    for streams in range(1, 5):
        ranges = split(100_000_001, streams)
        assert len(ranges) == streams
        assert [a for a, _ in ranges[1:]] == [b for _, b in ranges[:-1]]
        assert (ranges[0][0], ranges[-1][1]) == (0, 100_000_001)


def test_a_server_without_a_free_descriptor_serves_once_there_is_one(
    server: BulkServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    into = bytearray(len(DATA))
    assert fetch(server.port, into)
    listener, left = server._socket, [3]

    class Full:
        def accept(self) -> object:
            if left[0]:
                left[0] -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return listener.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(listener, name)

    monkeypatch.setattr(server, "_socket", Full())
    monkeypatch.setattr(tcp, "ACCEPT_WAIT_S", 0.001)
    assert fetch(server.port, into)  # the accept that waits takes this one; the next ones fail
    into = bytearray(len(DATA))
    assert fetch(server.port, into)
    assert (bytes(into), left) == (DATA, [0])
    assert caplog.text.count("a weight stream cannot be accepted, and is tried again: Too many open files") == 1
