"""LAW 27. One generation that fails ends that sample, not the run; a reward that fails on every call stops the run with
its first traceback instead of filtering for ever.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from astraflow.core.data import Failed, Invalid
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Outcome, Rehearsal, Script, ScriptedRaaS
from astraflow.errors import PeerError


def settings(path: Path) -> DataflowSettings:
    return DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(path)},
            "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}, "max_failure_streak": 20},
            "gconfigs": {"model0": {"n_samples": 3}},
            "tokenizer_path": "none",
            "run_dir": str(path),
        }
    )


def crashing_reward(task: m.Task, version: int) -> Sequence[Outcome]:
    return [Invalid("crash", f"Traceback of group {task.group_id}: KeyError: 'answer'")] * 3


def crashing_workflow(task: m.Task, version: int) -> Sequence[Outcome]:
    return [Failed("crash", f"Traceback of group {task.group_id}: AttributeError: 'x'")] * 3


@pytest.mark.parametrize(
    ("script", "first"),
    [
        (crashing_reward, "Traceback of group 1: KeyError: 'answer'"),
        (crashing_workflow, "Traceback of group 1: AttributeError: 'x'"),
    ],
)
def test_what_fails_on_every_call_stops_the_run_with_its_first_traceback(
    tmp_path: Path, script: Script, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with Rehearsal(settings(tmp_path)).running() as rehearsal:
            await rehearsal.join(ScriptedRaaS("r", rehearsal.TOKEN, script))
            trainer = rehearsal.trainer(6)
            await trainer.begin()
            with pytest.raises(PeerError, match="21 samples in a row had no reward; the first: crash") as raised:
                await trainer.batch()
            assert first in str(raised.value)
            assert rehearsal.service.stopping.is_set()
            assert rehearsal.service.error is not None
            assert rehearsal.service.error.status == 500
            assert rehearsal.service.error.kind == "WorkflowError"
            assert (await rehearsal.client.status())["error"] == str(rehearsal.service.error)

    asyncio.run(asyncio.wait_for(body(), 60))
    assert first in caplog.text


def test_a_sample_that_fails_ends_alone(tmp_path: Path) -> None:
    def one_of_three(task: m.Task, version: int) -> Sequence[Outcome]:
        return [Failed("engine", "boom"), 1.0, 0.0]

    async def body() -> None:
        async with Rehearsal(settings(tmp_path)).running() as rehearsal:
            await rehearsal.join(ScriptedRaaS("r", rehearsal.TOKEN, one_of_three))
            trainer = rehearsal.trainer(6)
            await trainer.begin()
            lost = 0.0
            for _ in range(10):
                reply = await trainer.train()
                assert len(reply.batch.lengths) == 4
                lost += reply.buffer_stats.get("rollout/lost/engine", 0)
            assert lost >= 20
            assert not rehearsal.service.stopping.is_set()

    asyncio.run(asyncio.wait_for(body(), 60))
