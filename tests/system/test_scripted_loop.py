"""The whole loop in one process: Dataflow, scripted RaaS and a scripted trainer over in-process ASGI."""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows
from astraflow.dataflow.trajectory_log import TrajectoryLog

ROWS = example_rows(5)


def settings(run_dir: Path) -> DataflowSettings:
    return DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(run_dir)},
            "dataflow": {
                "rollout_dataset": {"dataset_fn": "a.b:c"},
                "eval_workflows": {"w": {"gconfig_overrides": {"n_samples": 2}}},
                "eval_datasets": {"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "w"}},
            },
            "gconfigs": {"model0": {"n_samples": 4}},
            "tokenizer_path": "none",
            "run_dir": str(run_dir),
        }
    )


def outcomes(task: m.Task, version: int) -> list[float] | None:
    """Every fifth group has equal rewards, every seventh is rejected."""
    if task.n_samples is not None:
        return [1.0] * task.n_samples
    if task.group_id % 7 == 0:
        return None
    return [float(i % 2) if task.group_id % 5 else 1.0 for i in range(4)]


def test_twenty_steps_account_for_every_occurrence(tmp_path: Path) -> None:
    log = TrajectoryLog(RunDirectory(tmp_path), decode=lambda ids: " ".join(map(str, ids)))

    async def body() -> None:
        rehearsal = Rehearsal(settings(tmp_path), eval_rows={"held_out": ROWS}, trajectories=log)
        async with rehearsal.running():
            for uid in ("raas-0", "raas-1"):
                await rehearsal.join(ScriptedRaaS(uid, Rehearsal.TOKEN, outcomes, max_concurrency=6))
            trainer = rehearsal.trainer(batch_size=12)
            first = await trainer.begin(run_eval=True)
            assert first.eval_results is not None
            assert first.eval_results.datasets["held_out"].greedy == 100.0
            seen: Counter[int] = Counter()
            for step in range(1, 21):
                reply = await trainer.train()
                batch = reply.batch
                assert len(batch.lengths) == 12
                seen.update(np.unique(batch.group_id).tolist())
                ages = step - 1 - batch.versions[batch.loss_mask.astype(bool)]
                assert ages.min() >= 0
                assert ages.max() <= 2
                assert reply.buffer_stats["dropped/zero_advantage"] >= 0
            service = rehearsal.service
            service.books.ledger.validate()
            service.pool.validate()
            counters = service.books.ledger.counters
            service.books.admissions["model0"].validate(counters.states, counters.trained)
            assert counters.trained == 60 == len(seen)
            assert set(seen.values()) == {1}
            assert counters.dropped.keys() == {"zero_advantage", "rejected"}
            assert counters.issued == counters.trained + counters.dropped.total() + counters.in_flight
            status = await rehearsal.client.status()
            assert status["live"]["step"] == 20
            assert status["agents"]["model0"] == {
                "raas_ready": True,
                "trainer_ready": True,
                "started": True,
                "version": 20,
                "highest": 20,
                "step": 20,
            }
            assert {i["version"] for i in status["raas_pool"]["instances"]} <= {19, 20}

    asyncio.run(asyncio.wait_for(body(), 60))
    lines = (tmp_path / "trajectories" / "step_000005.jsonl").read_bytes().splitlines()
    samples = [msgspec.json.decode(line) for line in lines]
    assert {"trained"} <= {sample["outcome"] for sample in samples} <= {"trained", "zero_advantage"}
    assert samples[0]["text"].startswith("0 1 2")


def test_an_injected_over_age_group_is_dropped(tmp_path: Path) -> None:
    """A RaaS that answers late: its group was made by version 0, the trainer stands at step 4, the bound is 2."""

    async def body() -> None:
        rehearsal = Rehearsal(settings(tmp_path), eval_rows={"held_out": ROWS})
        async with rehearsal.running():
            late = ScriptedRaaS("late", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0, 1.0, 0.0], hold=True)
            await rehearsal.join(late)
            trainer = rehearsal.trainer(batch_size=8)
            await trainer.begin()
            while len(late.running) < 6:
                await asyncio.sleep(0)
            (kept, *others) = sorted(late.running)
            await late.finish(others)
            for _ in range(4):
                training = asyncio.create_task(trainer.train())
                while not training.done():
                    await asyncio.sleep(0)
                    await late.finish([task_id for task_id in late.running if task_id != kept])
                await training
            dropped = rehearsal.service.books.ledger.counters.dropped
            assert dropped == {}
            await late.finish([kept], versions=[0, 4, 4])
            while not dropped:
                await asyncio.sleep(0)
            assert dropped == {"stale": 1}
            reply = asyncio.create_task(trainer.train())
            while not reply.done():
                await asyncio.sleep(0)
                await late.finish()
            assert int(kept.rpartition("#")[2].partition(".")[0]) not in (await reply).batch.group_id
            assert (await reply).buffer_stats["dropped/stale"] == 1
            rehearsal.service.books.ledger.validate()

    asyncio.run(asyncio.wait_for(body(), 60))
