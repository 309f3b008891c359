"""A trainer's state changes with its durable record, or not at all; who asks again meanwhile waits for both.

Nothing is changed before an await that may have to be undone after it, and no lock is held while anybody waits for
other models, an evaluation or groups: a trainer that is started again ends what the one before still waits for.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astraflow.core.data import Group, Manifest
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.records import Item
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, ScriptedTrainer, example_rows
from astraflow.dataflow.store import LedgerStore
from astraflow.errors import AstraFlowError, ConflictError

MakeSettings = Callable[..., DataflowSettings]

TWO: dict[str, Any] = {"models": ("a", "b")}
EVALS: dict[str, Any] = {
    "eval_workflows": {"w": {"workflow_cls": "rlvr"}},
    "eval_datasets": {"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "w"}},
}


class SlowStore(LedgerStore):
    """A disk that a test stops."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.open = threading.Event()
        self.open.set()

    def commit(self, items: Iterable[Item]) -> None:
        assert self.open.wait(20.0)
        super().commit(items)

    def read(self, group_id: int) -> Group | None:
        assert self.open.wait(20.0)
        return super().read(group_id)


@asynccontextmanager
async def stopped(store: SlowStore) -> AsyncIterator[None]:
    """Nothing is written or read meanwhile."""
    store.open.clear()
    try:
        yield
    finally:
        store.open.set()


def play(settings: DataflowSettings, scenario: Callable[[Rehearsal], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        async with asyncio.timeout(30.0), Rehearsal(settings, **options).running() as rehearsal:
            await scenario(rehearsal)

    asyncio.run(body())


def raas(uid: str = "r", **options: Any) -> ScriptedRaaS:
    return ScriptedRaaS(uid, Rehearsal.TOKEN, lambda task, version: [1.0, 0.0], **options)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.01)


def again(model_id: str = "model0", version: int = 1, step: int = 1) -> m.ReadyRequest:
    return m.ReadyRequest(
        train_batch_size=4,
        sender_endpoint="127.0.0.1:2",
        model_id=model_id,
        recovered_version=version,
        recovered_step=step,
    )


def test_a_retry_of_ready_waits_for_the_first(make_settings: MakeSettings, tmp_path: Path) -> None:
    """Neither overtakes the other, so that what the trainer announces after its answer stays."""
    store = SlowStore(tmp_path / "ledger")

    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.join(raas())
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await trainer.train()
        async with stopped(store):
            first = asyncio.create_task(rehearsal.service.ready(again()))
            retry = asyncio.create_task(rehearsal.service.ready(again()))
            await asyncio.sleep(0.2)
            assert not first.done()
            assert not retry.done(), "answered before the first has changed anything"
        replies = await asyncio.gather(first, retry)
        assert [reply.next_version for reply in replies] == [2, 2]
        trainer.version, trainer.step = 2, 1
        await trainer.announce()
        newest = rehearsal.service.pool.versions.newest("model0")
        assert newest is not None
        assert newest.version == 2
        assert (await trainer.batch()).ok

    play(make_settings(), scenario, store=store)


@pytest.mark.parametrize("late", [0, 1, 2, 3, 5, 8, 13])
def test_a_retry_at_any_moment_of_a_rewind_changes_nothing(
    make_settings: MakeSettings, tmp_path: Path, late: int
) -> None:
    """Whatever point of the first one the retry meets: `late` turns of the event loop after it."""
    store = SlowStore(tmp_path / "ledger")

    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.join(raas())
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        for _ in range(3):
            await trainer.train()
        journal = rehearsal.service.books.journal
        read = journal.read

        async def slow(group_ids: Iterable[int]) -> Any:
            groups = await read(group_ids)
            for _ in range(6):
                await asyncio.sleep(0)
            return groups

        journal.read = slow  # type: ignore[method-assign]
        first = asyncio.create_task(rehearsal.service.ready(again(version=1, step=1)))
        for _ in range(late):
            await asyncio.sleep(0)
        back = rehearsal.trainer(4)
        await back.ready_again(1, 1)
        await back.announce()
        await first
        newest = rehearsal.service.pool.versions.newest("model0")
        assert newest is not None
        assert newest.version == back.version == 4
        for _ in range(2):
            await back.train(timeout=10.0)
        rehearsal.service.books.ledger.validate()

    play(make_settings(), scenario, store=store)


def test_nothing_is_changed_by_a_restart_that_the_disk_does_not_answer(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    """Until what it needs was read, the trainer before is still the one that the run knows."""
    store = SlowStore(tmp_path / "ledger")

    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.join(raas())
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await trainer.train()
        async with stopped(store):
            back = asyncio.create_task(rehearsal.service.ready(again(version=0, step=0)))
            await asyncio.sleep(0.2)
            policy = rehearsal.service.policies.get("model0")
            assert (policy.version, policy.step) == (1, 1)
        await back
        assert (policy.version, policy.step) == (-1, 0)

    play(make_settings(), scenario, store=store)


def test_no_raas_is_told_of_a_version_before_it_is_durable(make_settings: MakeSettings, tmp_path: Path) -> None:
    """Dataflow's successor would not know what the tokens of that version are."""
    store = SlowStore(tmp_path / "ledger")

    async def scenario(rehearsal: Rehearsal) -> None:
        peer = raas()
        await rehearsal.join(peer)
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await until(lambda: peer.version == 0)
        await trainer.batch()
        trainer.version, trainer.step = 1, 1
        async with stopped(store):
            announcing = asyncio.create_task(trainer.announce())
            await asyncio.sleep(0.5)
            assert peer.version == 0
        await announcing
        await until(lambda: peer.version == 1)

    play(make_settings(), scenario, store=store)


def test_an_evaluation_of_another_policy_tells_no_raas_of_it_either(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    store = SlowStore(tmp_path / "ledger")

    async def scenario(rehearsal: Rehearsal) -> None:
        peer = raas(models=("a", "b"))
        await rehearsal.join(peer)
        a, b = await _both(rehearsal)
        await until(lambda: peer.versions == {"a": 0, "b": 0})
        b.version = 1  # of the same step, so that it needs no batch
        async with stopped(store):
            announcing = asyncio.create_task(b.announce())
            await asyncio.sleep(0.1)
            scoring = asyncio.create_task(a.announce(run_eval=True))
            await asyncio.sleep(0.5)
            assert peer.versions["b"] == 0
        await announcing
        results = (await scoring).eval_results
        assert results is not None

    settings = make_settings(**TWO, barrier="independent", **EVALS)
    play(settings, scenario, store=store, eval_rows={"held_out": example_rows(2)})


async def _both(rehearsal: Rehearsal) -> tuple[ScriptedTrainer, ScriptedTrainer]:
    a, b = rehearsal.trainer(4, "a"), rehearsal.trainer(4, "b")
    await a.begin()
    await b.begin()
    return a, b


async def _ended(task: asyncio.Task[Any]) -> AstraFlowError:
    """The error that a call ends with soon."""
    async with asyncio.timeout(5.0):
        with pytest.raises(ConflictError) as found:
            await task
    return found.value


def test_ready_ends_what_its_predecessor_waits_for_at_the_barrier(make_settings: MakeSettings) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        a, _ = await _both(rehearsal)
        a.version = 1
        waits = asyncio.create_task(rehearsal.service.notify_version(a_version("a", 1)))
        await until(lambda: bool(rehearsal.service.waits.describe()))
        await rehearsal.service.ready(again("a", 1, 0))
        assert "was started again" in str(await _ended(waits))

    play(make_settings(**TWO), scenario)


def a_version(model_id: str, number: int, run_eval: bool = False) -> m.NotifyVersionRequest:
    manifest = Manifest(model_id=model_id, version=number, tensors=(), digest=f"{model_id}@{number}")
    return m.NotifyVersionRequest(version=number, step=0, model_id=model_id, manifest=manifest, run_eval=run_eval)


def test_ready_ends_the_poll_for_a_batch_of_its_predecessor(make_settings: MakeSettings) -> None:
    """Otherwise that would count as the trainer's presence until its deadline."""

    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.trainer(4).begin()
        poll = asyncio.create_task(rehearsal.service.batch(m.BatchRequest(model_id="model0", version=0, timeout=600.0)))
        await until(lambda: bool(rehearsal.service.waits.describe()))
        await rehearsal.service.ready(again("model0", 0, 0))
        await _ended(poll)
        assert rehearsal.service.waits.describe() == []

    play(make_settings(), scenario)


def test_ready_ends_an_evaluation_that_its_predecessor_waits_for(make_settings: MakeSettings) -> None:
    """Also one that has not begun: no RaaS is there, or it waits for another policy's first version."""

    async def scenario(rehearsal: Rehearsal) -> None:
        trainer = rehearsal.trainer(4, "a")
        await trainer.begin()
        scoring = asyncio.create_task(rehearsal.service.notify_version(a_version("a", 0, run_eval=True)))
        await until(lambda: bool(rehearsal.service.waits.describe()))
        await rehearsal.service.ready(again("a", 0, 0))
        await _ended(scoring)

    play(make_settings(**TWO, **EVALS), scenario, eval_rows={"held_out": example_rows(2)})


def test_a_lock_is_not_held_while_an_evaluation_or_a_barrier_is_waited_for(make_settings: MakeSettings) -> None:
    """A trainer's other calls are answered meanwhile."""

    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.join(raas(models=("a", "b"), hold=True))
        a, _ = await _both(rehearsal)
        a.version = 1
        barrier = asyncio.create_task(a.announce())
        await until(lambda: any("version 1 of a" in wait["who"] for wait in rehearsal.service.waits.describe()))
        async with asyncio.timeout(5.0):
            await rehearsal.client.save_buffer("a")
            await rehearsal.client.ready(again("a", 1, 0))
        with pytest.raises(ConflictError):
            await barrier

    play(make_settings(**TWO), scenario)


def test_two_polls_of_one_trainer_are_both_waiting(make_settings: MakeSettings) -> None:
    """One that ends takes the other's place from nobody: the trainer still waits."""

    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.trainer(4).begin()
        short = asyncio.create_task(rehearsal.client.batch("model0", 0, 0.2))
        long = asyncio.create_task(rehearsal.client.batch("model0", 0, 20.0))
        with pytest.raises(AstraFlowError):
            await short
        assert len(rehearsal.service.waits.describe()) == 1
        assert rehearsal.service.serving.waiting == {"model0"}
        assert rehearsal.service.serving.starved == {"model0"}
        long.cancel()

    play(make_settings(), scenario)


@pytest.mark.parametrize("restarted", [False, True])
def test_who_was_replaced_takes_no_place_back(make_settings: MakeSettings, tmp_path: Path, restarted: bool) -> None:
    """What a dead trainer asked lies in a queue until its successor works; a Dataflow started anew knows it, too."""

    def life(incarnation: str) -> m.ReadyRequest:
        return msgspec.structs.replace(again(version=0, step=0), incarnation=incarnation)

    async def comes_late(rehearsal: Rehearsal, trainer: ScriptedTrainer) -> None:
        before = rehearsal.service.policies.get("model0").version
        with pytest.raises(ConflictError, match="has taken this one's place"):
            await rehearsal.service.ready(life("one"))
        assert rehearsal.service.policies.get("model0").version == before
        await trainer.train()

    async def scenario(rehearsal: Rehearsal) -> None:
        trainer = rehearsal.trainer(4)
        await rehearsal.join(raas(), incarnation="p")
        await trainer.begin()
        await rehearsal.service.ready(life("one"))
        trainer.version = (await rehearsal.service.ready(life("two"))).next_version
        await trainer.announce()
        if not restarted:
            await comes_late(rehearsal, trainer)
        left.append(trainer)

    async def successor(rehearsal: Rehearsal) -> None:
        await rehearsal.join(raas(), incarnation="q")
        trainer = rehearsal.trainer(4)
        trainer.version, trainer.step = left[0].version, left[0].step
        await comes_late(rehearsal, trainer)

    left: list[ScriptedTrainer] = []
    settings = make_settings()
    play(settings, scenario, store=LedgerStore(tmp_path))
    if restarted:
        play(settings, successor, store=LedgerStore(tmp_path))
