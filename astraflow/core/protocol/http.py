"""The HTTP machinery that all programs share: typed msgpack endpoints, one error shape, one client.

Every route takes the run's bearer token, every msgpack body the schema header; bodies are bounded and decoded into a
struct before a handler sees them. What a handler raises leaves as the documented error body with the status of its
class: never an HTML page, never a hang. The only file that imports fastapi or httpx.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import httpx
import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from astraflow.core.data import decode, encode
from astraflow.core.protocol.messages import ErrorBody
from astraflow.core.protocol.openapi import FRAMES, MSGPACK, Described, part_of, reply_of
from astraflow.errors import (
    AstraFlowError,
    CallerError,
    ConflictError,
    DataError,
    DeadlineError,
    InvariantError,
    PeerError,
    boundary,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
Transport = httpx.AsyncBaseTransport

SCHEMA = "1"
SCHEMA_HEADER = "X-AstraFlow-Schema"
BODY_LIMIT = 64 * 2**20
BODY_DEADLINE = 30.0
"""Seconds a peer may take to send its body."""
CLIENT_IDLE = 30.0
"""Seconds after which a client closes an unused connection; sooner than a server does (SERVER_IDLE), so that no request
is sent into one that is being closed."""


@dataclass(frozen=True)
class Endpoint:
    """A msgpack route: the body (for GET, the query) becomes `request`, what `handler` returns becomes the reply.

    A handler that returns an async iterator is answered in frames: 4 bytes, little-endian, say how many follow; these
    are one reply (an error, where one ends the iteration).
    """

    method: str
    path: str
    request: type[msgspec.Struct]
    handler: Callable[[Any], Awaitable[Any]]
    envelope: bool = False
    """Wrap replies and errors as {ok, result} / {ok: false, error} (RaaS)."""
    required: str = ""
    """The documented sentence for a body that lacks required fields."""


@dataclass(frozen=True)
class StatusEndpoint:
    """A GET route whose reply is plain JSON (or text, for a str)."""

    path: str
    handler: Callable[[], Any]
    reply: Any = None
    """What the JSON is, where the handler's annotation does not say it."""


def build_app(name: str, token: str, endpoints: Sequence[Endpoint | StatusEndpoint]) -> FastAPI:
    """Return the ASGI application of a program."""
    app = FastAPI(openapi_url=None)
    described = cache(lambda: describe(name, endpoints).document())
    for endpoint in (*endpoints, StatusEndpoint("/openapi.json", described, dict)):
        if isinstance(endpoint, StatusEndpoint):
            app.add_api_route(endpoint.path, _status_route(endpoint, token), methods=["GET"], response_model=None)
        else:
            app.add_route(endpoint.path, _msgpack_route(endpoint, token), methods=[endpoint.method])
    app.add_exception_handler(HTTPException, _no_such_route)
    return app


def describe(name: str, endpoints: Sequence[Endpoint | StatusEndpoint]) -> Described:
    """The routes of a program, for its /openapi.json."""
    described = Described(name)
    for endpoint in endpoints:
        if isinstance(endpoint, StatusEndpoint):
            described.json(endpoint.path, endpoint.reply or reply_of(endpoint.handler))
        else:
            replies = reply_of(endpoint.handler), part_of(endpoint.handler)
            described.msgpack(endpoint.method, endpoint.path, endpoint.request, *replies, endpoint.envelope)
    return described


def is_address(url: str) -> bool:
    """Can a client be made for this URL: http or https, and a host?"""
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")  # as the resolver does: labels that are empty or too long
        return parsed.scheme in ("http", "https") and bool(parsed.host) and (parsed.port or 0) < 1 << 16
    except (httpx.InvalidURL, UnicodeError):
        return False


def in_process(app: Any) -> Transport:
    """A client transport that calls an application without a socket, for tests and single-process runs."""
    return httpx.ASGITransport(app, raise_app_exceptions=False)


class Peer:
    """A typed client of one program. Retries only what never reached the peer; every call has a deadline."""

    def __init__(self, url: str, token: str, *, transport: Transport | None = None, timeout: float = 30.0) -> None:
        self.url = url
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=CLIENT_IDLE)
        self._client = httpx.AsyncClient(
            base_url=url,
            transport=transport,
            timeout=timeout,
            limits=limits,
            trust_env=False,
            verify=url.startswith("https"),  # loading certificates takes 50 ms, which plain HTTP need not spend
            headers={"Authorization": f"Bearer {token}", SCHEMA_HEADER: SCHEMA},
        )

    async def post(self, path: str, request: msgspec.Struct, reply: type[T], *, timeout: float | None = None) -> T:
        """POST a struct and decode the reply. CallerError, ConflictError, DeadlineError or PeerError otherwise."""
        headers = {"Content-Type": MSGPACK}
        response = await self._send("POST", path, timeout, content=encode(request), headers=headers)
        return self._decode(path, response, reply)

    async def stream(
        self, path: str, request: msgspec.Struct, reply: type[T], *, timeout: float | None = None
    ) -> AsyncGenerator[T, None]:
        """POST a struct and decode the frames of the answer as they come, `timeout` seconds apart at most."""
        limit = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        body: dict[str, Any] = {"content": encode(request), "headers": {"Content-Type": MSGPACK}}
        with self._failures(path):
            async with self._client.stream("POST", path, timeout=limit, **body) as response:
                if response.status_code >= 400:
                    await response.aread()
                    raise self._error(path, response)
                buffer = b""
                async for chunk in response.aiter_raw():
                    buffer += chunk
                    while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4], "little")):
                        yield self._decoded(path, buffer[4:end], reply)
                        buffer = buffer[end:]
                if buffer:
                    raise PeerError(f"{self.url}{path}: the answer ends within a frame")

    async def get(
        self, path: str, reply: type[T], *, params: dict[str, Any] | None = None, timeout: float | None = None
    ) -> T:
        """GET with query parameters; the reply is msgpack or JSON, as the peer says."""
        response = await self._send("GET", path, timeout, params=params)
        return self._decode(path, response, reply)

    async def close(self) -> None:
        await self._client.aclose()

    async def _send(self, method: str, path: str, timeout: float | None, **body: Any) -> httpx.Response:
        limit = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        with self._failures(path):
            response = await self._client.request(method, path, timeout=limit, **body)
        if response.status_code >= 400:
            raise self._error(path, response)
        return response

    @contextmanager
    def _failures(self, path: str) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise DeadlineError(f"{self.url}{path} did not answer in time ({type(error).__name__})") from error
        except httpx.HTTPError as error:
            raise PeerError(f"{self.url}{path}: {type(error).__name__}: {error}") from error

    def _error(self, path: str, response: httpx.Response) -> AstraFlowError:
        try:
            if response.headers.get("content-type") == MSGPACK:
                body = decode(response.content, ErrorBody)
            else:
                body = msgspec.json.decode(response.content, type=ErrorBody)
            text = body.error
        except (DataError, msgspec.MsgspecError):
            text = response.text[:200]
        message = f"{self.url}{path}: {text}"
        if response.status_code == 409:
            return ConflictError(message)
        if response.status_code == 503:
            return DeadlineError(message)
        if response.status_code < 500:
            return CallerError(message, response.status_code)
        return PeerError(message)

    def _decode(self, path: str, response: httpx.Response, reply: type[T]) -> T:
        if response.headers.get("content-type") == MSGPACK:
            return self._decoded(path, response.content, reply)
        try:
            return msgspec.json.decode(response.content, type=reply)
        except msgspec.MsgspecError as error:
            raise PeerError(f"{self.url}{path}: broken reply: {error}") from error

    def _decoded(self, path: str, body: bytes, reply: type[T]) -> T:
        try:
            return decode(body, reply)
        except (DataError, msgspec.MsgspecError) as error:
            raise PeerError(f"{self.url}{path}: broken reply: {error}") from error


def _status_route(endpoint: StatusEndpoint, token: str) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        try:
            _authorise(request, token)
            with _handling(endpoint.path):
                value = endpoint.handler()
        except AstraFlowError as error:
            return Response(msgspec.json.encode(_error_body(error)), error.status, media_type="application/json")
        if isinstance(value, str):
            return Response(value, media_type="text/plain; version=0.0.4")
        return Response(json.dumps(msgspec.to_builtins(value)), media_type="application/json")

    route.__name__ = endpoint.path.strip("/").replace("/", "_")
    return route


def _msgpack_route(endpoint: Endpoint, token: str) -> Callable[[Request], Awaitable[Response]]:
    async def route(request: Request) -> Response:
        try:
            _authorise(request, token)
            message = await _read(request, endpoint)
            with _handling(endpoint.path):
                asked = endpoint.handler(message)
                # a POST changes something: it runs to its end, whoever hears of it
                result = await (_while_heard(request, asked) if endpoint.method == "GET" else asked)
        except AstraFlowError as error:
            return Response(encode(_error_body(error)), error.status, media_type=MSGPACK)
        if isinstance(result, AsyncIterator):
            return StreamingResponse(_frames(endpoint, result), media_type=FRAMES)
        return Response(_body_of(endpoint, result), media_type=MSGPACK)

    return route


async def _while_heard(request: Request, work: Awaitable[T]) -> T:
    """Await the answer to a question; PeerError, and no more work for it, where its client goes away first."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.create_task(left())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise PeerError("the client went away before it was answered")
        return await working
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _frames(endpoint: Endpoint, parts: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Each part behind its length; an error is the last one."""
    try:
        with _handling(endpoint.path):
            async for part in parts:
                yield _framed(_body_of(endpoint, part))
    except AstraFlowError as error:
        yield _framed(encode(_error_body(error)))


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


def _body_of(endpoint: Endpoint, result: Any) -> bytes:
    return encode({"ok": True, "result": result} if endpoint.envelope else result)


@contextmanager
def _handling(path: str) -> Iterator[None]:
    """A handler's foreign exception is a bug of ours: logged with its traceback, answered as a documented error."""
    try:
        with boundary(InvariantError, path):
            yield
    except InvariantError:
        log.exception("%s failed", path)
        raise


async def _read(request: Request, endpoint: Endpoint) -> Any:
    if endpoint.method == "GET":
        try:
            return msgspec.convert({**request.query_params, **request.path_params}, endpoint.request, strict=False)
        except msgspec.ValidationError as error:
            raise CallerError(f"GET {endpoint.path}: {error}") from error
    if request.headers.get(SCHEMA_HEADER) != SCHEMA:
        raise CallerError(f"{endpoint.path}: header {SCHEMA_HEADER} must be {SCHEMA}")
    body = await _body(request)
    try:
        return decode(body, endpoint.request)
    except DataError as error:
        lacks = endpoint.required if endpoint.required and "missing required field" in str(error) else ""
        raise CallerError(lacks or f"{endpoint.path}: {error if body else 'the body is empty'}") from error


async def _body(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > BODY_LIMIT:
        raise CallerError(f"the body has {declared} bytes, at most {BODY_LIMIT} are taken", 413)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_DEADLINE):
            async for chunk in request.stream():
                size += len(chunk)
                if size > BODY_LIMIT:
                    raise CallerError(f"the body is longer than {BODY_LIMIT} bytes", 413)
                chunks.append(chunk)
    except TimeoutError as error:
        raise CallerError(f"the body did not arrive within {BODY_DEADLINE:.0f} s", 408) from error
    except ClientDisconnect as error:
        raise CallerError("the peer went away in the middle of its body") from error
    return b"".join(chunks)


def _authorise(request: Request, token: str) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), token.encode()):
        raise CallerError("missing or wrong bearer token", 401)


def _error_body(error: AstraFlowError) -> ErrorBody:
    cause = error.__cause__
    return ErrorBody(error=str(error), kind=error.kind, detail=f"{type(cause).__name__}: {cause}" if cause else "")


async def _no_such_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = f"no route {request.method} {request.url.path}"
    return Response(
        msgspec.json.encode(ErrorBody(error=text, kind="CallerError")), status, media_type="application/json"
    )
