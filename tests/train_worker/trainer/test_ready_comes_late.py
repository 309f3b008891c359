"""A request can arrive late, when its trainer is long past it: then it takes nothing back."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astraflow.core.protocol import in_process
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, manifest
from astraflow.errors import ConflictError
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in another thread, as the service and its clients have."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def _settings(tmp_path: Path) -> DataflowSettings:
    return DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(tmp_path)},
            "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}},
            "gconfigs": {"model0": {"n_samples": 2}},
            "tokenizer_path": "none",
            "run_dir": str(tmp_path),
        }
    )


def test_a_repetition_of_ready_after_a_step_takes_nothing_back(loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    def wait(work: Callable[[], object]) -> object:
        async def body() -> object:
            return await work()  # type: ignore[misc]

        return asyncio.run_coroutine_threadsafe(body(), loop).result(20.0)

    async def begin() -> Rehearsal:
        rehearsal = Rehearsal(_settings(tmp_path))
        rehearsal.service.start()
        await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0]))
        return rehearsal

    rehearsal = wait(begin)
    assert isinstance(rehearsal, Rehearsal)
    client = AstraFlowClient(
        "http://dataflow", Rehearsal.TOKEN, "model0", transport=in_process(rehearsal.app), loop=loop
    )
    version = client.signal_ready(4, "127.0.0.1:1", recovered_version=0, recovered_step=0)
    client.notify_version(version, 0, manifest(version))
    client.get_batch(version, timeout=10.0)
    client.notify_version(version + 1, 1, manifest(version + 1))
    policy = rehearsal.service.policies.get("model0")
    before = (policy.version, policy.step)
    # the first one again: its client has had its answer, the network has not let go of it
    with contextlib.suppress(ConflictError):
        client.signal_ready(4, "127.0.0.1:1", recovered_version=0, recovered_step=0)
    assert (policy.version, policy.step) == before
    client.close()
    wait(rehearsal.service.stop)
    wait(rehearsal.client.close)
