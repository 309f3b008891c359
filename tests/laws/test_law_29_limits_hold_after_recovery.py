"""LAW 29. Limits are owned in one place and hold after recovery: no burst, no zero capacity."""

import asyncio
from pathlib import Path

import pytest

from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS
from astraflow.dataflow.staleness import Admission

ETA, BATCH = 2, 3


@pytest.mark.parametrize("step", [0, 5, 10, 50])
@pytest.mark.parametrize("held", [0, 4])
def test_a_restored_limit_is_a_fresh_one_less_what_was_restored(step: int, held: int) -> None:
    assert Admission(BATCH, ETA, step, held).capacity(10**6) == Admission(BATCH, ETA).capacity(10**6) - held


@pytest.mark.parametrize("step", [0, 7])
def test_no_more_than_the_bound_is_ever_accepted_or_running(tmp_path: Path, step: int) -> None:
    """With room for a thousand groups, a service (fresh or restored) starts (η + 1) B, then B a step."""
    settings = DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(tmp_path)},
            "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}, "buffer": {"max_staleness": ETA}},
            "gconfigs": {"model0": {"n_samples": 2}},
            "tokenizer_path": "none",
            "run_dir": str(tmp_path),
        }
    )

    def outcomes(task: m.Task, version: int) -> list[float]:
        return [1.0, 0.0]

    async def body() -> None:
        async with Rehearsal(settings).running() as rehearsal:
            peer = ScriptedRaaS("r", rehearsal.TOKEN, outcomes, max_concurrency=1000)
            await rehearsal.join(peer)
            trainer = rehearsal.trainer(2 * BATCH)
            if step == 0:
                await trainer.begin()
            else:
                await rehearsal.client.ready(
                    m.ReadyRequest(
                        train_batch_size=2 * BATCH,
                        sender_endpoint="h:1",
                        model_id="model0",
                        recovered_step=step,
                        recovered_version=step,
                    )
                )
                trainer.version, trainer.step = step + 1, step
                await trainer.announce()
            counters = rehearsal.service.books.ledger.counters
            admission = rehearsal.service.books.admissions["model0"]
            for trained in range(6):
                while rehearsal.service.serving.ready("model0") < (ETA + 1) * BATCH:
                    await asyncio.sleep(0)
                assert counters.issued == (ETA + 1 + trained) * BATCH
                assert admission.accepted + admission.running == (ETA + step + trained + 1) * BATCH
                await trainer.train()

    asyncio.run(asyncio.wait_for(body(), 60))
