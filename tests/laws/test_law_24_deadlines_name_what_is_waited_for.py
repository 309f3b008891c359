"""LAW 24. Every wait has a deadline and an owner; `astraflow why` names both. (Dataflow's waits, over the wire)"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows
from astraflow.errors import DeadlineError


def settings(path: Path, **dataflow: Any) -> DataflowSettings:
    return DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(path)},
            "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}, **dataflow},
            "gconfigs": {"model0": {"n_samples": 2}},
            "tokenizer_path": "none",
            "run_dir": str(path),
        }
    )


def zero(task: m.Task, version: int) -> list[float]:
    return [0.0] * (task.n_samples or 2)


@pytest.mark.parametrize(
    ("peers", "version", "message"),
    [
        ([], 0, "on 2 more groups .* no RaaS serves the current verified version; RaaS: none has registered"),
        (
            [{"hold": True}],
            0,
            r"on 2 more groups \(0 of 2 ready\); RaaS: r0 healthy, 6 in flight; dropped since the last batch: none",
        ),
        ([{"hold": True}], 3, "on version 3 of 'model0' to be announced; 0 is current"),
    ],
)
def test_a_batch_that_does_not_come(tmp_path: Path, peers: list[dict[str, Any]], version: int, message: str) -> None:
    async def body() -> None:
        async with Rehearsal(settings(tmp_path)).running() as rehearsal:
            scripted = [ScriptedRaaS(f"r{i}", rehearsal.TOKEN, zero, **options) for i, options in enumerate(peers)]
            for peer in scripted:
                await rehearsal.join(peer)
            trainer = rehearsal.trainer(4)
            await trainer.begin()
            while any(len(peer.running) < 6 for peer in scripted):
                await asyncio.sleep(0)
            pattern = rf"trainer of model0 at version {version} waited 0.01 s, since \d\d:\d\d:\d\d, {message}"
            with pytest.raises(DeadlineError, match=pattern):
                await rehearsal.client.batch("model0", version, 0.01)

    asyncio.run(asyncio.wait_for(body(), 60))


def test_an_evaluation_that_does_not_end(tmp_path: Path) -> None:
    keys = {
        "eval": {"timeout_s": 0.05},
        "eval_workflows": {"w": {}},
        "eval_datasets": {"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "w"}},
    }

    async def body() -> None:
        rehearsal = Rehearsal(settings(tmp_path, **keys), eval_rows={"held_out": example_rows(2)})
        async with rehearsal.running():
            with pytest.raises(
                DeadlineError,
                match=r"evaluation of model0 version 0 waited 0.05 s.* 4 of 4 evaluation tasks; .*: no RaaS",
            ):
                await rehearsal.trainer(4).begin(run_eval=True)

    asyncio.run(asyncio.wait_for(body(), 60))


def test_who_waits_can_be_asked_meanwhile(tmp_path: Path) -> None:
    async def body() -> None:
        async with Rehearsal(settings(tmp_path)).running() as rehearsal:
            trainer = rehearsal.trainer(4)
            await trainer.begin()
            asking = asyncio.create_task(trainer.batch())
            status: Callable[[], Any] = rehearsal.client.status
            while not (waiting := (await status())["waiting"]):
                await asyncio.sleep(0)
            assert waiting[0].keys() == {"who", "on", "since"}
            await rehearsal.service.stop()
            with pytest.raises(DeadlineError, match="stopping"):
                await asking

    asyncio.run(asyncio.wait_for(body(), 60))
