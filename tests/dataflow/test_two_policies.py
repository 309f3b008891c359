"""Two policies in one workflow: rows are split by model, versions are each its own, one's death stalls no other."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from astraflow.core.data import Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.audit import audit
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Outcome, Rehearsal, ScriptedRaaS, ScriptedTrainer, example_rows, trajectory
from astraflow.dataflow.store import LedgerStore
from astraflow.errors import ConflictError

MakeSettings = Callable[..., DataflowSettings]
MODELS = ("model0", "model1")
GROUPS, N = 2, 2


def raas() -> ScriptedRaaS:
    """Each of its episodes gives both policies a trajectory; their rewards are opposite."""

    def script(task: m.Task, version: int) -> Sequence[Outcome]:
        return [
            tuple(
                trajectory(
                    task,
                    index,
                    Value(float((index + number) % 2)),
                    [peer.versions[model_id]] * (3 + number),
                    model_id=model_id,
                )
                for number, model_id in enumerate(MODELS)
            )
            for index in range(N)
        ]

    peer = ScriptedRaaS("a", Rehearsal.TOKEN, script, models=MODELS)
    return peer


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def rehearsal_of(make_settings: MakeSettings, **dataflow: object) -> Rehearsal:
    return Rehearsal(make_settings(N, MODELS, ledger={"durable": False}, **dataflow))


def test_rows_are_split_by_model_and_versions_leave_together(make_settings: MakeSettings) -> None:
    async def scenario() -> None:
        rehearsal = rehearsal_of(make_settings)
        async with rehearsal.running():
            await rehearsal.join(raas())
            trainers = [rehearsal.trainer(GROUPS * N, model_id) for model_id in MODELS]
            await asyncio.gather(*(trainer.begin() for trainer in trainers))
            for step in range(1, 5):
                replies = await asyncio.gather(*(trainer.batch() for trainer in trainers))
                for number, reply in enumerate(replies):
                    assert len(reply.batch.lengths) == GROUPS * N
                    assert set(reply.batch.lengths.tolist()) == {2 + 3 + number}
                assert not set(replies[0].batch.group_id.tolist()) & set(replies[1].batch.group_id.tolist())
                trainers[0].version = trainers[0].step = step
                first = asyncio.create_task(trainers[0].announce())
                # its announcement waits for the other's
                await until(lambda: any("version" in w["who"] for w in rehearsal.service.status()["waiting"]))
                assert not first.done()
                (waiting,) = [w for w in rehearsal.service.status()["waiting"] if "version" in w["who"]]
                assert waiting["on"] == "the versions of model1"
                trainers[1].version = trainers[1].step = step
                await trainers[1].announce()
                await first

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_independent_policies_wait_for_nobody(make_settings: MakeSettings) -> None:
    async def scenario() -> None:
        rehearsal = rehearsal_of(make_settings, barrier="independent", buffer={"max_staleness": 3})
        async with rehearsal.running():
            await rehearsal.join(raas())
            first, second = (rehearsal.trainer(GROUPS * N, model_id) for model_id in MODELS)
            await asyncio.gather(first.begin(), second.begin())
            for _ in range(3):  # what the other's bound lets it have
                await first.train()
            agents = rehearsal.service.status()["agents"]
            assert (agents["model0"]["version"], agents["model1"]["version"]) == (3, 0)

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("barrier", ["barrier", "independent"])
def test_the_death_of_one_policy_stalls_no_other(
    make_settings: MakeSettings, barrier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.dataflow.service.CLOCK_S", 0.05)

    async def scenario() -> None:
        rehearsal = rehearsal_of(make_settings, barrier=barrier, barrier_timeout_s=1.0)
        async with rehearsal.running():
            await rehearsal.join(raas())
            living, dying = (rehearsal.trainer(GROUPS * N, model_id) for model_id in MODELS)
            await asyncio.gather(living.begin(), dying.begin())
            await asyncio.gather(living.train(), dying.train())
            for _ in range(6):  # beyond what the credit of the dead one lets start
                await living.train()
            counters = rehearsal.service.books.ledger.counters
            assert counters.dropped["absent"] > 0
            assert rehearsal.service.books.absent == {"model1"}
            # it comes back: it is waited for again, and has its batch
            await dying.recover(1, 1)
            assert rehearsal.service.books.absent == frozenset()
            await asyncio.gather(living.train(), dying.train())
            rehearsal.service.books.ledger.validate()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_one_that_dies_before_it_announces_what_it_was_restored_to_stalls_no_other(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has a version of its lineage: the services go on with the one that they have, after a restart too."""
    monkeypatch.setattr("astraflow.dataflow.service.CLOCK_S", 0.05)

    async def scenario() -> None:
        settings = make_settings(N, MODELS, barrier_timeout_s=0.3)
        peer = raas()
        before = Rehearsal(settings, store=LedgerStore(tmp_path))
        async with before.running():
            await before.join(peer)
            living, dying = (before.trainer(GROUPS * N, model_id) for model_id in MODELS)
            await asyncio.gather(living.begin(), dying.begin())
            await asyncio.gather(living.train(), dying.train())
            await dying.ready_again(0)
            for _ in range(4):
                await living.train()
            assert before.service.books.absent == {"model1"}
        after = Rehearsal(settings, store=LedgerStore(tmp_path))
        async with after.running():
            await after.join(peer)
            again, back = (after.trainer(GROUPS * N, model_id) for model_id in MODELS)
            again.version, again.step = living.version, living.step
            for _ in range(4):
                await again.train()
            await back.recover(0)
            assert after.service.books.absent == frozenset()
            await asyncio.gather(again.train(), back.train())
            after.service.books.ledger.validate()
            after.service.pool.validate()
        report = audit(tmp_path)
        assert report.conserved, report.problems

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize("restored", [False, True])
def test_nobody_waits_for_one_that_is_said_to_be_gone(make_settings: MakeSettings, restored: bool) -> None:
    async def steps(trainer: ScriptedTrainer) -> None:
        while True:
            await trainer.train()

    async def scenario() -> None:
        rehearsal = rehearsal_of(make_settings)  # it would be missed after ten minutes
        async with rehearsal.running():
            await rehearsal.join(raas())
            living, dying = (rehearsal.trainer(GROUPS * N, model_id) for model_id in MODELS)
            await asyncio.gather(living.begin(), dying.begin())
            await asyncio.gather(living.train(), dying.train())
            if restored:
                await dying.ready_again(0)
            step = asyncio.create_task(living.train())
            await asyncio.sleep(0.05)
            assert not step.done()
            await rehearsal.client.deregister_trainer("model1")
            await step
            for _ in range(4):
                await living.train()
            await rehearsal.client.deregister_trainer("model1")  # again is the same
            await rehearsal.client.deregister_trainer("model0")  # the last one is never absent
            assert rehearsal.service.books.absent == {"model1"}
            await dying.recover(0)
            assert rehearsal.service.books.absent == frozenset()
            others = asyncio.create_task(steps(living))
            for _ in range(3):
                await dying.train()
            others.cancel()
            rehearsal.service.attendance.validate()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_one_that_has_made_its_last_step_holds_up_nobody(make_settings: MakeSettings) -> None:
    async def scenario() -> None:
        rehearsal = rehearsal_of(make_settings)
        async with rehearsal.running():
            await rehearsal.join(raas())
            short, long = (rehearsal.trainer(GROUPS * N, model_id) for model_id in MODELS)
            await asyncio.gather(short.begin(), long.begin())
            await asyncio.gather(short.train(last=True), long.train())
            for _ in range(6):
                await long.train()
            assert rehearsal.service.books.absent == {"model0"}

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_bad_request_joins_no_barrier(make_settings: MakeSettings) -> None:
    async def scenario() -> None:
        rehearsal = rehearsal_of(make_settings)
        async with rehearsal.running():
            await rehearsal.join(raas())
            with pytest.raises(ConflictError, match="unknown model_id 'model2'"):
                await rehearsal.trainer(GROUPS * N, "model2").begin()
            first, second = (rehearsal.trainer(GROUPS * N, model_id) for model_id in MODELS)
            await asyncio.gather(first.begin(), second.begin())
            await asyncio.gather(first.train(), second.train())

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_an_evaluation_at_the_start_holds_the_versions_of_all_policies(make_settings: MakeSettings) -> None:
    async def scenario() -> None:
        workflows = {"e": {"workflow_cls": "rlvr", "gconfig_overrides": {"n_samples": 1}}}
        sets = {"d": {"dataset_fn": "a.b:c", "eval_workflow": "e", "greedy": False}}
        settings = make_settings(
            N, MODELS, ledger={"durable": False}, eval_workflows=workflows, eval_datasets=sets, barrier_timeout_s=60
        )
        rehearsal = Rehearsal(settings, eval_rows={"d": example_rows(2)})
        async with rehearsal.running():
            await rehearsal.join(raas())
            first, second = (rehearsal.trainer(GROUPS * N, model_id) for model_id in MODELS)
            begun = asyncio.create_task(second.begin(run_eval=True))
            await until(lambda: bool(rehearsal.service.status()["waiting"]))
            (waiting,) = rehearsal.service.status()["waiting"]
            assert waiting["on"] == "the first version of model0"
            replies = await asyncio.gather(first.begin(run_eval=True), begun)
            assert all(reply.eval_results is not None for reply in replies)

    asyncio.run(asyncio.wait_for(scenario(), 60))
