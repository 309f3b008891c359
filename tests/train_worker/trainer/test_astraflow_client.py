"""The trainer's client, through the real protocol in process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from astraflow.core.protocol import messages as m
from astraflow.core.protocol.http import Endpoint, build_app, in_process
from astraflow.errors import CallerError, DeadlineError, PeerError
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient


@pytest.fixture(name="dataflow")
def _dataflow(scripted: SimpleNamespace) -> Any:
    def make(version: int) -> Any:
        return scripted.batch_of([scripted.trajectory(version, i, [1, 2], [3, 4], float(i)) for i in range(2)])

    return scripted.Dataflow(make)


def connect(dataflow: Any, **options: Any) -> AstraFlowClient:
    return AstraFlowClient("http://dataflow", "token", "model0", transport=dataflow.transport, **options)


def test_a_step_in_calls(dataflow: Any) -> None:
    with connect(dataflow) as client:
        assert client.initialize()["status"] == "ready"
        assert client.signal_ready(4, "127.0.0.1:1") == 1
        reply = client.get_batch(0)
        assert reply.batch.rewards.tolist() == [0, 1]
        assert reply.batch.padded()["input_ids"].shape == (2, 4)
        assert client.notify_version(1, 1).eval_results is None
        client.shutdown_service()
    assert dataflow.ready[0].model_id == "model0"
    assert dataflow.served == [0]
    assert dataflow.notified[0].version == 1
    assert dataflow.stopped


def test_notifications_without_waiting_come_back_in_order(dataflow: Any) -> None:
    with connect(dataflow) as client:
        for version in (1, 2, 3):
            client.notify_version_async(version, version, run_eval=True)
        replies = client.drain_pending_notifications()
        assert [reply.eval_results.version for reply in replies if reply.eval_results] == [1, 2, 3]
        assert [reply.eval_results.overall_avg_at_k for reply in replies if reply.eval_results] == [1, 2, 3]
        assert client.drain_pending_notifications() == []


def test_only_what_has_ended_is_drained_without_waiting(dataflow: Any) -> None:
    may_end = threading.Event()
    dataflow.evaluates = lambda version: may_end.wait(20)
    with connect(dataflow) as client:
        client.notify_version_async(1, 1, run_eval=True)
        assert client.drain_pending_notifications(wait=False) == []
        assert client.has_pending_notifications
        may_end.set()
        assert len(client.drain_pending_notifications()) == 1
        assert not client.has_pending_notifications


def test_a_loop_of_the_callers(dataflow: Any, loop: asyncio.AbstractEventLoop) -> None:
    with connect(dataflow, loop=loop) as client:
        assert client.initialize()["status"] == "ready"
    assert loop.is_running()


def test_a_wrong_token_is_not_waited_for(dataflow: Any) -> None:
    with AstraFlowClient("http://dataflow", "wrong", transport=dataflow.transport) as client:
        with pytest.raises(CallerError, match="token"):
            client.initialize()


def test_nobody_there_is_a_deadline_that_says_who_waits() -> None:
    with AstraFlowClient("http://127.0.0.1:9", "token", "model0") as client:
        with pytest.raises(DeadlineError, match="trainer of model0 waited 0 s for Dataflow"):
            client.initialize(timeout=0)


def test_an_error_of_dataflow_arrives_as_its_class() -> None:
    class Without:
        app = build_app("nothing", "token", [])

        @property
        def transport(self) -> Any:
            return in_process(self.app)

    with connect(Without()) as client:
        with pytest.raises(CallerError, match="no route"):
            client.get_batch(0)


def test_closing_twice_is_fine(dataflow: Any) -> None:
    client = connect(dataflow)
    client.close()
    client.close()


def test_it_loads_no_torch() -> None:
    code = "import sys; import astraflow.train_worker.trainer.astraflow_client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_dataflow_that_is_started_again_is_waited_for() -> None:
    """Its address refuses connections at first; an answer, even an error, is not waited out."""
    with AstraFlowClient("http://127.0.0.1:9", "token", patience=0.3) as client:
        started = time.monotonic()
        with pytest.raises(PeerError):
            client.get_batch(0)
        assert time.monotonic() - started >= 0.3

    class Dataflow:
        async def keep(self, request: m.SaveBufferRequest) -> m.Ok:
            return m.Ok()

    endpoint = Endpoint("POST", "/save_buffer", m.SaveBufferRequest, Dataflow().keep)
    refusing = Refusing(in_process(build_app("dataflow", "token", [endpoint])))
    with AstraFlowClient("http://dataflow", "token", transport=refusing, patience=10.0) as client:
        client.save_buffer(3)
    assert refusing.left == 0


class Refusing(httpx.AsyncBaseTransport):
    """Refuses two connections, then lets through."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self.inner = inner
        self.left = 2

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.left:
            self.left -= 1
            raise httpx.ConnectError("refused")
        return await self.inner.handle_async_request(request)
