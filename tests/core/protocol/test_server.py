"""Peers that send too much, too slowly, or no HTTP: each gets an answer that arrives, and nobody is held up by it."""

import asyncio
import json
import socket
import time
from collections.abc import Callable

import pytest

from astraflow.core.protocol import Endpoint, Server, build_app, http, server
from astraflow.core.protocol import messages as m

HEAD = b"POST /cancel HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nX-AstraFlow-Schema: 1\r\n"
TOO_LONG = http.BODY_LIMIT + 2**20


def serve(peer: Callable[[socket.socket], None]) -> None:
    """Let `peer` have a connection in a thread; then a well-behaved one is served as if nothing had been."""

    async def cancel(request: m.CancelRequest) -> m.CancelResult:
        return m.CancelResult(cancelled=request.task_ids)

    def talk(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connected:
            peer(connected)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connected:
            body = b"\x81\xa8task_ids\x90"
            connected.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert everything(connected).startswith(b"HTTP/1.1 200")

    async def body() -> None:
        served = Server(build_app("test", "t", [Endpoint("POST", "/cancel", m.CancelRequest, cancel)]))
        serving = asyncio.create_task(served.serve())
        await asyncio.to_thread(talk, served.port)
        served.stop()
        await serving

    asyncio.run(asyncio.wait_for(body(), 60))


def everything(connected: socket.socket) -> bytes:
    """What comes until the server closes."""
    parts = []
    while part := connected.recv(2**16):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("extra", [b"", b"Connection: close\r\n"])
def test_a_body_over_the_limit_is_read_out_so_that_the_answer_arrives(extra: bytes) -> None:
    def peer(connected: socket.socket) -> None:
        connected.sendall(HEAD + extra + b"Content-Length: %d\r\n\r\n" % TOO_LONG)
        for _ in range(TOO_LONG // 2**20):
            connected.sendall(bytes(2**20))
        answer = everything(connected)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"at most 67108864 are taken" in answer

    serve(peer)


def test_who_asks_first_is_told_before_it_sends() -> None:
    def peer(connected: socket.socket) -> None:
        connected.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % TOO_LONG)
        assert everything(connected).startswith(b"HTTP/1.1 413")

    serve(peer)


def test_who_announces_more_than_it_sends_is_answered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINGER_S", 0.2)

    def peer(connected: socket.socket) -> None:
        connected.sendall(HEAD + b"Content-Length: %d\r\n\r\nx" % TOO_LONG)
        assert everything(connected).startswith(b"HTTP/1.1 413")

    serve(peer)


def test_who_stalls_in_its_body_is_told_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_DEADLINE", 0.2)

    def peer(connected: socket.socket) -> None:
        connected.sendall(HEAD + b"Content-Length: 100\r\n\r\nhalf of it")
        began = time.monotonic()
        answer = everything(connected)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"the body did not arrive within" in answer
        assert time.monotonic() - began < 5

    serve(peer)


@pytest.mark.parametrize("begun", [b"", b"POST /cancel HT", HEAD])
def test_who_stalls_in_its_header_is_closed(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(server, "HEADER_DEADLINE", 0.2)

    def peer(connected: socket.socket) -> None:
        connected.sendall(begun)
        assert everything(connected) == b""

    serve(peer)


def test_a_trickle_is_no_header_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_DEADLINE", 0.3)

    def peer(connected: socket.socket) -> None:
        began = time.monotonic()
        with pytest.raises(OSError, match=r"reset|[Pp]ipe"):
            for byte in HEAD:
                connected.sendall(bytes([byte]))
                time.sleep(0.05)
        assert time.monotonic() - began < 5

    serve(peer)


def test_what_is_no_http_is_a_documented_error() -> None:
    def peer(connected: socket.socket) -> None:
        connected.sendall(b"\x16\x03\x01 this is TLS\r\n\r\n")
        head, _, body = everything(connected).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert json.loads(body) == {"ok": False, "error": "Invalid HTTP request received.", "kind": "CallerError"} | {
            "detail": ""
        }

    serve(peer)
