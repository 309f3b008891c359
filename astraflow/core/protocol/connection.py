"""What a server does about peers that send too much, too slowly, or no HTTP. Beside http.py the only file with uvicorn.

An answer given before the body was read would be lost: closing a socket with unread bytes resets it, and the peer sees
that instead of the answer. So the rest of the body is read and thrown away first, for LINGER_S at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import h11
import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from astraflow.core.protocol.messages import ErrorBody

LINGER_S = 10.0
"""Longest that a body is thrown away before its sender is answered."""
HEADER_DEADLINE = 60.0
"""Seconds a peer may take to send the header of a request."""
CLOSING = (408, 413)
"""Statuses after which a connection is of no more use."""


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
    """A connection whose peer has to send each header within HEADER_DEADLINE; what is not HTTP is a documented error."""

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
