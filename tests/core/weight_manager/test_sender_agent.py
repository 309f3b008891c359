"""The agent's process: its routes over HTTP, its life and death."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest

from astraflow.core.data import Manifest
from astraflow.core.protocol import SenderClient
from astraflow.core.weight_manager.agent_pipe import AgentProcess, Listening, Publish, Published, Settings, Superseded
from astraflow.core.weight_manager.layout import buffer_length, lay_out
from astraflow.core.weight_manager.segment import DoubleBuffer
from astraflow.errors import CallerError, DeadlineError

LAYOUT = lay_out([("w", (3,), "float32")])


class Agent:
    """A real agent, driven as a trainer would but without torch."""

    def __init__(self) -> None:
        self.buffer = DoubleBuffer.create(buffer_length(LAYOUT))
        self.process = AgentProcess(
            Settings(
                model_id="model0",
                host="127.0.0.1",
                port=0,
                token="secret",
                transports=("tcp", "shm"),
                segment_fd=self.buffer.fd,
                length=self.buffer.length,
                layout=LAYOUT,
            )
        )
        report = self.process.receive(time.monotonic() + 60, "that it listens")
        assert isinstance(report, Listening)
        self.url = f"http://127.0.0.1:{report.port}"

    def publish(self, version: int, half: int) -> Published | Superseded:
        self.buffer.finish(half, version)
        self.process.send(Publish(version=version, half=half))
        report = self.process.receive(time.monotonic() + 60, "the version")
        assert isinstance(report, Published | Superseded)
        return report


@pytest.fixture
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.process.close()
    agent.buffer.close()


def test_routes_answer_as_documented(agent: Agent) -> None:
    async def body() -> None:
        client = SenderClient(agent.url, "secret")
        assert await client.get_version() == -1
        with pytest.raises(DeadlineError, match="waiting for the trainer's first publish"):
            await client.buffer_info()
        with pytest.raises(DeadlineError):
            await client.manifest(0)
        report = agent.publish(0, 0)
        assert isinstance(report, Published)
        assert await client.get_version() == 0
        assert await client.manifest(0) == report.manifest
        assert (await client.buffer_info())["single_buffer_length"] == 12
        assert (await client.capabilities())["strategies"] == ["full"]
        with pytest.raises(CallerError, match="no manifest of model0 version 9; the newest is 0"):
            await client.manifest(9)
        await client.close()
        async with httpx.AsyncClient(base_url=agent.url, headers={"Authorization": "Bearer secret"}) as raw:
            assert (await raw.get("/get_version")).json() == {"version": 0}
            assert (await raw.get("/get_version", headers={"Authorization": ""})).status_code == 401
            assert (await raw.get("/manifest/x")).status_code == 400
            assert (await raw.get("/nothing")).status_code == 404

    asyncio.run(body())


def test_a_version_overwritten_before_its_digests_are_done_never_existed(agent: Agent) -> None:
    agent.buffer.begin(0)
    agent.process.send(Publish(version=0, half=0))
    assert agent.process.receive(time.monotonic() + 60, "the version") == Superseded(version=0)


def test_a_wait_for_a_silent_agent_ends_at_its_deadline(agent: Agent) -> None:
    with pytest.raises(DeadlineError, match="the weight sender agent of model0 did not report version 5 within"):
        agent.process.receive(time.monotonic() + 0.01, "version 5")


def test_a_manifest_longer_than_a_pipe_arrives(agent: Agent) -> None:
    """Reports of many versions fill the pipe many times over while nobody reads."""
    for version in range(2000):
        agent.buffer.finish(version % 2, version)
        agent.process.send(Publish(version=version, half=version % 2))
    manifests: list[Manifest] = []
    while not manifests or manifests[-1].version < 1999:
        report = agent.process.receive(time.monotonic() + 60, "every version")
        if isinstance(report, Published):
            manifests.append(report.manifest)
    assert manifests[-1].digest == manifests[0].digest
