"""LAW 28. A barrier's membership follows the registered models: a bad request adds no phantom member, a dead one is
named, not waited for.
"""

import asyncio
import logging
from pathlib import Path

import pytest

from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, manifest
from astraflow.errors import AstraFlowError


def settings(path: Path, timeout: float) -> DataflowSettings:
    return DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(path)},
            "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}, "barrier_timeout_s": timeout},
            "gconfigs": {"a": {"n_samples": 1}, "b": {"n_samples": 1}},
            "tokenizer_path": "none",
            "run_dir": str(path),
        }
    )


def ready(model_id: str, size: int = 1) -> m.ReadyRequest:
    return m.ReadyRequest(
        train_batch_size=size, sender_endpoint="h:1", model_id=model_id, manifest=manifest(0, model_id)
    )


def announcement(model_id: str, version: int = 0) -> m.NotifyVersionRequest:
    return m.NotifyVersionRequest(version=version, step=0, model_id=model_id, manifest=manifest(version, model_id))


def test_a_bad_request_adds_no_member(tmp_path: Path) -> None:
    async def body() -> None:
        async with Rehearsal(settings(tmp_path, 600)).running() as rehearsal:
            await rehearsal.client.ready(ready("a"))
            for request in (ready("phantom"), ready("b", size=0), ready("a", size=5)):
                with pytest.raises(AstraFlowError):
                    await rehearsal.client.ready(request)
            for stranger in (announcement("phantom"), announcement("b")):
                with pytest.raises(AstraFlowError):
                    await rehearsal.client.notify_version(stranger)
            # only `a` is a member: nobody is waited for
            await asyncio.wait_for(rehearsal.client.notify_version(announcement("a")), 60)

    asyncio.run(body())


def test_members_wait_for_each_other_and_a_dead_one_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with Rehearsal(settings(tmp_path, 0.3)).running() as rehearsal:
            for model_id in ("a", "b"):
                await rehearsal.client.ready(ready(model_id))
            await asyncio.gather(*(rehearsal.client.notify_version(announcement(model)) for model in ("a", "b")))
            assert caplog.records == []
            waiting = asyncio.create_task(rehearsal.client.notify_version(announcement("a", 1)))
            while not (waits := (await rehearsal.client.status())["waiting"]):
                await asyncio.sleep(0)
            assert (waits[0]["who"], waits[0]["on"]) == ("version 1 of a", "the versions of b")
            await asyncio.wait_for(waiting, 60)
            assert "no version of b within 0.3 s: a go on without it" in caplog.text
            caplog.clear()
            await asyncio.wait_for(rehearsal.client.notify_version(announcement("a", 2)), 60)
            assert caplog.records == []

    with caplog.at_level(logging.WARNING):
        asyncio.run(body())
