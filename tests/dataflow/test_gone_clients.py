"""A client that is gone waits for nothing: its poll ends with its connection, and is no sign of its life."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from astraflow.core.protocol import DataflowClient, Server
from astraflow.dataflow import service as service_module
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS

MakeSettings = Callable[..., DataflowSettings]

POLL = "GET /batch?model_id={}&version=0&timeout=600 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n"


@asynccontextmanager
async def served(rehearsal: Rehearsal) -> AsyncIterator[Server]:
    """Its routes on a socket."""
    server = Server(rehearsal.app)
    serving = asyncio.create_task(server.serve())
    try:
        yield server
    finally:
        server.stop()
        await serving
        server.close()


async def poll(server: Server, model_id: str) -> socket.socket:
    """A trainer's connection, in the middle of GET /batch."""
    connection = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", server.port))
    connection.sendall(POLL.format(model_id, Rehearsal.TOKEN).encode())
    return connection


async def soon(condition: Callable[[], bool], seconds: float = 8.0) -> bool:
    """Does it come to be, within some seconds?"""
    loop = asyncio.get_running_loop()
    by = loop.time() + seconds
    while not condition() and loop.time() < by:
        await asyncio.sleep(0.01)
    return condition()


def test_the_poll_of_a_killed_trainer_ends_with_its_connection(make_settings: MakeSettings) -> None:
    async def body() -> None:
        rehearsal = Rehearsal(make_settings())
        async with rehearsal.running(), served(rehearsal) as server:
            await rehearsal.trainer(4).begin()
            connection = await poll(server, "model0")
            waits = rehearsal.service.waits
            assert await soon(lambda: len(waits.describe()) == 1)
            connection.close()
            assert await soon(lambda: waits.describe() == [])
            assert not rehearsal.service.serving.waiting

    asyncio.run(body())


def test_a_trainer_that_is_killed_in_a_poll_is_absent_by_the_barriers_deadline(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its policy's credit holds the others up no longer than that."""
    monkeypatch.setattr(service_module, "CLOCK_S", 0.05)

    async def body() -> None:
        rehearsal = Rehearsal(make_settings(models=("a", "b"), barrier_timeout_s=0.5))
        async with rehearsal.running(), served(rehearsal) as server:
            await rehearsal.trainer(4, "a").begin()
            await rehearsal.trainer(4, "b").begin()
            there, killed = await poll(server, "a"), await poll(server, "b")
            assert await soon(lambda: len(rehearsal.service.waits.describe()) == 2)
            killed.close()
            assert await soon(lambda: rehearsal.service.books.absent == {"b"})
            there.close()

    asyncio.run(body())


def test_who_is_still_there_is_answered(make_settings: MakeSettings) -> None:
    async def body() -> None:
        rehearsal = Rehearsal(make_settings())
        async with rehearsal.running(), served(rehearsal) as server:
            trainer = rehearsal.trainer(4)
            await trainer.begin()
            client = DataflowClient(server.url, Rehearsal.TOKEN)
            asking = asyncio.create_task(client.batch("model0", 0, 20.0))
            assert await soon(lambda: bool(rehearsal.service.waits.describe()))
            await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0]))
            assert (await asking).batch.lengths.size == 4
            await client.close()

    asyncio.run(body())
