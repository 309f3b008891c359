"""LAW 30. Counters agree: issued = trained + dropped by reason + in flight, always."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from astraflow.core.data import Failed, Invalid
from astraflow.core.protocol import messages as m
from astraflow.dataflow import raas_link
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Outcome, Rehearsal, ScriptedRaaS


def outcomes(task: m.Task, version: int) -> Sequence[Outcome] | None:
    chance = random.Random(task.group_id)
    kinds: list[Sequence[Outcome] | None] = [
        [1.0, 0.0],
        [1.0, 0.0],
        [1.0, 1.0],
        [Failed("crash"), Failed("crash")],
        [1.0, Invalid("timeout")],
        None,
    ]
    return chance.choice(kinds)


@pytest.mark.parametrize("seed", range(5))
def test_counters_agree_while_raas_come_go_and_die(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raas_link, "RETRY_S", 0.001)
    settings = DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(tmp_path)},
            "dataflow": {"rollout_dataset": {"dataset_fn": "a.b:c"}},
            "gconfigs": {"model0": {"n_samples": 2}},
            "tokenizer_path": "none",
            "run_dir": str(tmp_path),
        }
    )
    chance = random.Random(seed)

    async def body() -> None:
        async with Rehearsal(settings).running() as rehearsal:
            service = rehearsal.service
            counters = service.books.ledger.counters

            def check() -> None:
                service.books.ledger.validate()
                service.pool.validate()
                admission = service.books.admissions["model0"]
                admission.validate(counters.states, counters.trained)
                assert admission.accepted + admission.running <= (2 + admission.step + 1) * 2
                assert counters.issued == counters.trained + counters.dropped.total() + counters.in_flight

            async def join(number: int) -> ScriptedRaaS:
                peer = ScriptedRaaS(
                    f"r{number}", rehearsal.TOKEN, outcomes, max_concurrency=3, hold=chance.random() < 0.3
                )
                await rehearsal.join(peer)
                return peer

            trainer = rehearsal.trainer(4)
            await trainer.begin()
            peers = [await join(0), await join(1)]
            for step in range(15):
                training = asyncio.create_task(trainer.train())
                while not training.done():
                    await asyncio.sleep(0)
                    for peer in peers:
                        await peer.finish(chance.sample(sorted(peer.running), min(2, len(peer.running))))
                    check()
                await training
                if step % 3 == 1:
                    victim = peers.pop(0)
                    if chance.random() < 0.5:
                        await victim.die()
                    else:
                        await rehearsal.client.deregister_raas(victim.uid, drain=False)
                    peers.append(await join(2 + step))
                check()
            assert counters.trained == 30

    asyncio.run(asyncio.wait_for(body(), 60))
