"""Robust inputs: each wrong request is a clear error in the documented shape, and the service lives on."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from astraflow.core.data import Failed, encode
from astraflow.core.protocol import Endpoint, Peer, RaaSClient, Server, StatusEndpoint, build_app, in_process
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.http import BODY_LIMIT, SCHEMA_HEADER
from astraflow.core.protocol.openapi import MSGPACK
from astraflow.errors import CallerError, ConflictError, DataError, DeadlineError, InvariantError, PeerError

TOKEN = "secret"
TASK = m.Task(task_id="a", group_id=1, data={"x": 1})
HEADERS = {"Authorization": f"Bearer {TOKEN}", SCHEMA_HEADER: "1", "Content-Type": MSGPACK}


async def submit(request: m.SubmitRequest) -> list[m.Accepted]:
    if request.workflow_id == "conflict":
        raise ConflictError("no")
    if request.workflow_id == "wait":
        raise DeadlineError("waited 1 s for a RaaS")
    if request.workflow_id == "bug":
        raise InvariantError("broken")
    if request.workflow_id == "crash":
        raise ZeroDivisionError("of a handler")
    return [m.Accepted(task_id=task.task_id, accepted=True) for task in request.tasks]


async def batch(request: m.BatchRequest) -> m.Ok:
    assert request.version == 3
    return m.Ok()


def app() -> object:
    return build_app(
        "test",
        TOKEN,
        [
            Endpoint("POST", "/submit", m.SubmitRequest, submit, True, "Request body must contain 'tasks'"),
            Endpoint("GET", "/batch", m.BatchRequest, batch),
            StatusEndpoint("/status", lambda: {"status": "ready"}),
            StatusEndpoint("/metrics", lambda: "a 1\n"),
        ],
    )  # fmt: skip


def run(test: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def body() -> None:
        async with httpx.AsyncClient(transport=in_process(app()), base_url="http://x") as client:
            await test(client)

    asyncio.run(body())


def test_a_typed_call_round_trips() -> None:
    async def body() -> None:
        client = RaaSClient("http://x", TOKEN, transport=in_process(app()))
        assert await client.submit(m.SubmitRequest(tasks=[TASK])) == [m.Accepted(task_id="a", accepted=True)]
        peer = client.peer
        assert (await peer.get("/batch", m.Ok, params={"version": 3})).ok
        assert await peer.get("/status", dict) == {"status": "ready"}
        await client.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"", {}, 400, "the body is empty"),
        (b"\xc1garbage", {}, 400, "/submit"),
        (encode({}), {}, 400, "Request body must contain 'tasks'"),
        (encode({"tasks": [], "wrong": 1}), {}, 400, "wrong"),
        (encode({"tasks": "x"}), {}, 400, "$.tasks"),
        (encode({"tasks": []}), {"Authorization": "Bearer other"}, 401, "bearer token"),
        (encode({"tasks": []}), {"Authorization": ""}, 401, "bearer token"),
        (encode({"tasks": []}), {SCHEMA_HEADER: "2"}, 400, "must be 1"),
        (b"x" * (BODY_LIMIT + 1), {}, 413, "at most"),
    ],
)
def test_a_wrong_request_is_a_documented_error(body: bytes, headers: dict[str, str], status: int, words: str) -> None:
    async def test(client: httpx.AsyncClient) -> None:
        reply = await client.post("/submit", content=body, headers={**HEADERS, **headers})
        assert reply.status_code == status
        error = msgspec.msgpack.decode(reply.content)
        assert error["ok"] is False
        assert set(error) == {"ok", "error", "kind", "detail"}
        assert words in error["error"]
        assert (await client.get("/status", headers=HEADERS)).status_code == 200

    run(test)


def test_a_body_without_a_declared_length_is_bounded_too() -> None:
    async def test(client: httpx.AsyncClient) -> None:
        async def endless() -> AsyncIterator[bytes]:
            for _ in range(BODY_LIMIT // 2**20 + 2):
                yield b"x" * 2**20

        reply = await client.post("/submit", content=endless(), headers=HEADERS)
        assert reply.status_code == 413

    run(test)


def test_unknown_routes_and_methods_are_json_errors() -> None:
    async def test(client: httpx.AsyncClient) -> None:
        for method, path, status in (("GET", "/nope", 404), ("POST", "/batch", 405)):
            reply = await client.request(method, path, headers=HEADERS)
            assert reply.status_code == status
            assert reply.json()["error"] == f"no route {method} {path}"

    run(test)


def test_bad_query_parameters_name_the_field() -> None:
    async def test(client: httpx.AsyncClient) -> None:
        for query, words in (("version=x", "version"), ("versio=3", "versio")):
            reply = await client.get(f"/batch?{query}", headers=HEADERS)
            assert reply.status_code == 400
            assert words in msgspec.msgpack.decode(reply.content)["error"]

    run(test)


@pytest.mark.parametrize(
    ("workflow", "error"),
    [("conflict", ConflictError), ("wait", DeadlineError), ("bug", PeerError), ("crash", PeerError)],
)
def test_a_handlers_error_arrives_as_its_class(workflow: str, error: type[Exception]) -> None:
    async def body() -> None:
        client = RaaSClient("http://x", TOKEN, transport=in_process(app()))
        with pytest.raises(error):
            await client.submit(m.SubmitRequest(tasks=[TASK], workflow_id=workflow))

    asyncio.run(body())


def test_a_broken_reply_is_the_peers_fault() -> None:
    async def body() -> None:
        peer = Peer("http://x", TOKEN, transport=in_process(app()))
        with pytest.raises(PeerError, match="broken reply"):
            await peer.get("/status", m.ReadyReply)

    asyncio.run(body())


def test_a_server_binds_before_it_tells_its_port_and_lives_through_a_stalled_peer() -> None:
    async def body() -> None:
        server = Server(app())
        task = asyncio.create_task(server.serve())
        with socket.create_connection(("127.0.0.1", server.port)) as stalled:
            stalled.sendall(b"POST /submit HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n")
            client = RaaSClient(server.url, TOKEN)
            assert (await client.submit(m.SubmitRequest(tasks=[TASK])))[0].accepted
            await client.close()
        server.stop()
        await task

    asyncio.run(body())


def test_a_taken_port_is_a_clear_error() -> None:
    taken = Server(app())
    with pytest.raises(CallerError, match=f"cannot listen on 127.0.0.1:{taken.port}"):
        Server(app(), port=taken.port)
    taken.close()


def test_an_unreachable_peer_is_named() -> None:
    async def body() -> None:
        server = Server(app())
        url = server.url
        server.close()
        client = RaaSClient(url, TOKEN)
        with pytest.raises(PeerError, match=url):
            await client.status()
        await client.close()

    asyncio.run(body())


def test_a_client_lets_go_of_an_idle_connection_before_its_server_does() -> None:
    server = Server(app())
    peer = Peer(server.url, TOKEN)
    pool = peer._client._transport._pool  # type: ignore[attr-defined]
    assert 2 * pool._keepalive_expiry <= server._uvicorn.config.timeout_keep_alive
    server.close()
    asyncio.run(peer.close())


class Parts:
    """A route that answers with one part, then waits to be let go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.ended = asyncio.Event()

    async def route(self, request: m.Empty) -> AsyncIterator[m.SenderVersion]:
        return self.parts()

    async def parts(self) -> AsyncIterator[m.SenderVersion]:
        try:
            yield m.SenderVersion(version=1)
            await self.go_on.wait()
            yield m.SenderVersion(version=2)
            raise DeadlineError("nothing more came")
        finally:
            self.ended.set()


@asynccontextmanager
async def streaming() -> AsyncIterator[tuple[Parts, Peer]]:
    parts = Parts()
    server = Server(build_app("test", TOKEN, [Endpoint("POST", "/parts", m.Empty, parts.route)]))
    serving = asyncio.create_task(server.serve())
    peer = Peer(server.url, TOKEN, timeout=60)
    try:
        async with asyncio.timeout(60):
            yield parts, peer
    finally:
        await peer.close()
        server.stop()
        await serving


def test_parts_arrive_while_the_answer_is_made_and_an_error_ends_it() -> None:
    async def body() -> None:
        async with streaming() as (parts, peer):
            stream = peer.stream("/parts", m.Empty(), dict)
            assert await anext(stream) == {"version": 1}
            parts.go_on.set()
            assert await anext(stream) == {"version": 2}
            assert (await anext(stream))["error"] == "nothing more came"
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    asyncio.run(body())


def test_a_peer_that_leaves_in_mid_stream_ends_what_made_it() -> None:
    async def body() -> None:
        async with streaming() as (parts, peer):
            stream = peer.stream("/parts", m.Empty(), dict)
            await anext(stream)
            await stream.aclose()
            await parts.ended.wait()

    asyncio.run(body())


def test_an_episode_that_cannot_be_read_is_a_failed_one_and_harms_no_other() -> None:
    good: dict[str, object] = {"type": "failed", "reason": "timeout", "detail": ""}
    bad = {"type": "episode", "trajectories": [{"task_id": "a", "reward": 1.0}]}
    items = [
        {
            "task_id": "a",
            "lease": {"group_id": 1, "owner": "r", "attempt": 1},
            "result": {"group_id": 1, "episodes": [good, bad]},
        },
        {"task_id": "b", "lease": {"group_id": 2, "owner": "r", "attempt": 1}, "result": {"group_id": "two"}},
        {"task_id": "c", "lease": {"group_id": 3, "owner": "r", "attempt": 1}, "result": None},
    ]

    async def pull(request: m.PullRequest) -> Any:
        return items

    async def body() -> None:
        peer = build_app("test", TOKEN, [Endpoint("POST", "/pull", m.PullRequest, pull, True)])
        client = RaaSClient("http://raas-7", TOKEN, transport=in_process(peer))
        first, second, third = await client.pull(m.PullRequest())
        assert first.result is not None
        assert second.result is not None
        assert third.result is None
        kept, lost = first.result.episodes
        assert kept == Failed("timeout")
        for failed in (lost, *second.result.episodes):
            assert isinstance(failed, Failed)
            assert failed.detail.startswith("what the RaaS at http://raas-7 returned cannot be read: ")
        items[:] = [{"task": 3}]
        with pytest.raises(DataError, match="http://raas-7/pull: not a valid list"):
            await client.pull(m.PullRequest())
        await client.close()

    asyncio.run(body())
