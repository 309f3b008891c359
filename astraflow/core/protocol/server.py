"""A program's socket, and what is done about peers that send too much, too slowly, or no HTTP.

An answer given before the body was read would be lost: closing a socket with unread bytes resets it, and the peer sees
that instead of the answer. So the rest of the body is read and thrown away first, for LINGER_S at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from astraflow.core.protocol.messages import ErrorBody
from astraflow.errors import CallerError

SERVER_IDLE = 60
"""Seconds after which a server closes a connection that nobody uses."""
LINGER_S = 10.0
"""Longest that a body is thrown away before its sender is answered."""
HEADER_DEADLINE = 60.0
"""Seconds a peer may take to send the header of a request."""
KEEPALIVE = 30
"""Seconds without a byte after which the system asks whether a peer's machine is still there."""
CLOSING = (408, 413)
"""Statuses after which a connection is of no more use."""


class Server:
    """A bound, then served, ASGI application: the port is known (and announced) only after it is ours."""

    def __init__(self, app: Any, host: str = "127.0.0.1", port: int = 0) -> None:
        # the protocol is named because asyncio turns Nagle's algorithm off only then (40 ms a call otherwise)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise CallerError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._socket.listen(512)
        _notice_dead_peers(self._socket)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        config = uvicorn.Config(
            read_out(app),
            http=Connection,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=SERVER_IDLE,
            timeout_graceful_shutdown=2,
        )
        self._uvicorn = uvicorn.Server(config)

    async def serve(self) -> None:
        """Serve until `stop`; signals stay with the program."""
        await self._uvicorn._serve([self._socket])

    def stop(self) -> None:
        self._uvicorn.should_exit = True

    def close(self) -> None:
        """Give the port back (also where `serve` never ran)."""
        self._socket.close()


def _notice_dead_peers(listening: socket.socket) -> None:
    """Connections to a machine that is gone without a word end too: a poll of it is not waited out."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": KEEPALIVE, "TCP_KEEPINTVL": KEEPALIVE // 3, "TCP_KEEPCNT": 3}.items():
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def read_out(app: ASGIApp) -> ASGIApp:
    """`app`, with the rest of a request's body read before its answer is sent."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        whole = not {b"transfer-encoding", b"content-length"} & headers.keys()

        async def receiving() -> Message:
            nonlocal whole
            message = await receive()
            whole = not message.get("more_body", False)
            return message

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start":
                # whoever asks first whether to send its body will not; whoever stalled had its time
                if not whole and b"expect" not in headers and message["status"] != 408:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LINGER_S):
                            while not whole:
                                await receiving()
                if not whole or message["status"] in CLOSING:
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await app(scope, receiving, answering)

    return wrapped


class Connection(H11Protocol):
    """Its peer has to send each header within HEADER_DEADLINE; what is not HTTP is a documented error."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(ErrorBody(error=msg, kind="CallerError"))
        head: list[Any] = [("content-type", "application/json"), ("content-length", str(len(body)))]
        for event in (
            h11.Response(status_code=400, headers=[*head, ("connection", "close")], reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """The peer's turn is a header: it has begun to send one, or is to."""
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._late is None:
            self._late = self.loop.call_later(HEADER_DEADLINE, self.transport.close)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
