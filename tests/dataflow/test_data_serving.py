"""Batches: in order, within the bound, idempotent, with a deadline."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from astraflow.core.data import Batch, Group, Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.books import Books
from astraflow.dataflow.data_serving import DataServing, ServingRules
from astraflow.dataflow.ledger import Curate, DropReason, Finish, GroupKey, Issue, Lease, Ledger, State
from astraflow.dataflow.policies import Policies
from astraflow.dataflow.raas_pool import RaaSPool
from astraflow.dataflow.scripted import manifest, trajectory
from astraflow.dataflow.staleness import Admission
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.dataflow.waiting import Waits
from astraflow.errors import CallerError, ConflictError, DataError, DeadlineError, WorkflowError


class Bench:
    """A serving station whose model is at any version; groups are pushed through the ledger up to ready."""

    def __init__(self, *, batch: int = 2, eta: int = 2, mask: bool = False, **rules: Any) -> None:
        self.pool = RaaSPool(["model0"])
        self.books = Books(Ledger(), self.pool)
        self.policies = Policies({"model0": 1})
        self.policies.make_ready(
            m.ReadyRequest(train_batch_size=batch, sender_endpoint="h:1", model_id="model0", manifest=manifest(0))
        )
        self.books.admit("model0", Admission(batch, eta))
        self.serving = DataServing(
            self.books,
            self.policies,
            TrajectoryLog(None),
            Waits(),
            ServingRules(max_staleness=eta, mask=mask, **rules),
            statistics=dict,
            lacking=lambda model_id: "RaaS: none",
        )
        key = self.pool.register(m.RegisterRaaSRequest(uid="r", raas_url="http://r"), 0).instance.key
        self.owner = key
        self.announce(0, 0)

    def announce(self, version: int, step: int) -> None:
        served = self.serving.has_served("model0") or step > 0
        before = self.policies.get("model0").step
        request = m.NotifyVersionRequest(version=version, step=step, model_id="model0", manifest=manifest(version))
        self.policies.announce(request, served=served)
        if step > before:
            self.serving.acknowledge("model0", step)
            self.books.admissions["model0"].advance(step)
        self.serving.advance("model0")

    def push(self, *versions: int) -> int:
        """A group of one sample whose tokens have these versions becomes ready."""
        (issued,) = self.books.record(Issue(0))
        group_id = issued.group_id
        self.books.record(Lease((group_id,), self.owner, 1.0))
        self.books.record(Finish(group_id, self.owner, (GroupKey("model0"),)))
        self.books.record(Curate(group_id))
        task = m.Task(task_id="t", group_id=group_id, data={})
        t = trajectory(task, 0, Value(1.0), versions)
        self.serving.add(Group(group_id=group_id, task_id="t", prompt_id=0, model_id="model0", trajectories=(t,)))
        return group_id

    async def batch(self, version: int, timeout: float = 0.0) -> list[int]:
        reply = await self.serving.batch(m.BatchRequest(model_id="model0", version=version, timeout=timeout))
        return reply.batch.group_id.tolist()


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 60))


def test_versions_one_to_five_with_a_bound_of_two_serve_three_to_five() -> None:
    async def body() -> None:
        bench = Bench(batch=3, eta=2)
        for step in range(1, 6):
            bench.announce(step, step)
        ids = {version: bench.push(version) for version in range(1, 6)}
        assert await bench.batch(5) == [ids[3], ids[4], ids[5]]
        assert bench.books.ledger.counters.dropped == {DropReason.STALE: 2}

    run(body)


def test_a_batch_that_cannot_be_made_leaves_its_groups_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(groups: object) -> Batch:
        raise DataError("no batch of these")

    async def body() -> None:
        bench = Bench(batch=2)
        ids = [bench.push(0) for _ in range(2)]
        with monkeypatch.context() as patched, pytest.raises(DataError, match="no batch of these"):
            patched.setattr(Batch, "of", fail)
            await bench.batch(0)
        assert bench.books.ledger.groups(State.READY, "model0") == ids
        assert not bench.serving.has_served("model0")
        bench.books.ledger.validate()
        assert await bench.batch(0) == ids

    run(body)


def test_a_group_grows_too_old_while_it_waits() -> None:
    async def body() -> None:
        bench = Bench(batch=2, eta=1)
        bench.push(0)
        bench.announce(1, 1)
        assert bench.serving.ready("model0") == 1
        bench.announce(2, 2)
        assert bench.serving.ready("model0") == 0
        assert bench.books.ledger.counters.dropped == {DropReason.STALE: 1}
        bench.books.ledger.validate()

    run(body)


def test_one_old_token_makes_a_group_old() -> None:
    async def body() -> None:
        bench = Bench(batch=1, eta=0)
        bench.announce(1, 1)
        bench.push(1, 0, 1)
        with pytest.raises(DeadlineError):
            await bench.batch(1)
        young = bench.push(1, 1)
        assert await bench.batch(1) == [young]

    run(body)


def test_masking_keeps_the_young_tokens_of_an_old_group() -> None:
    async def body() -> None:
        bench = Bench(batch=2, eta=1, mask=True)
        for step in (1, 2, 3):
            bench.announce(step, step)
        bench.push(0, 1)
        mixed, young = bench.push(1, 2, 3), bench.push(3)
        reply = await bench.serving.batch(m.BatchRequest(model_id="model0", version=3, timeout=0))
        assert reply.batch.group_id.tolist() == [mixed, young]
        assert reply.batch.loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 0, 1]
        assert reply.buffer_stats["buffer/staleness_max"] == 1
        assert reply.buffer_stats["buffer/masked_tokens"] == 1
        assert bench.books.ledger.counters.dropped == {DropReason.STALE: 1}

    run(body)


def test_age_is_counted_in_steps_not_numbers() -> None:
    async def body() -> None:
        bench = Bench(batch=1, eta=1)
        bench.announce(10, 1)
        bench.announce(20, 2)
        old, young = bench.push(0), bench.push(10)
        assert await bench.batch(20) == [young]
        assert bench.books.ledger.get(old) is None

    run(body)


def test_the_same_version_gets_the_same_batch_until_it_is_acknowledged() -> None:
    async def body() -> None:
        bench = Bench(batch=2)
        ids = [bench.push(0) for _ in range(4)]
        assert await bench.batch(0) == ids[:2]
        assert await bench.batch(0) == ids[:2]
        assert bench.books.ledger.counters.trained == 0
        bench.announce(1, 1)
        assert bench.books.ledger.counters.trained == 2
        assert await bench.batch(1) == ids[2:]

    run(body)


def test_two_callers_of_one_version_share_its_batch() -> None:
    async def body() -> None:
        bench = Bench(batch=2)
        callers = [asyncio.create_task(bench.batch(0, 5)) for _ in range(2)]
        await asyncio.sleep(0)
        ids = [bench.push(0) for _ in range(4)]
        assert await asyncio.gather(*callers) == [ids[:2], ids[:2]]

    run(body)


def test_weights_published_again_without_a_step_acknowledge_nothing() -> None:
    async def body() -> None:
        bench = Bench(batch=1)
        ids = [bench.push(0), bench.push(0)]
        assert await bench.batch(0) == ids[:1]
        bench.announce(1, 0)
        assert await bench.batch(1) == ids[:1]
        assert bench.books.ledger.counters.trained == 0

    run(body)


def test_a_caller_waits_for_the_announcement_of_its_version() -> None:
    async def body() -> None:
        bench = Bench(batch=1)
        first, second = bench.push(0), bench.push(0)
        assert await bench.batch(0) == [first]
        early = asyncio.create_task(bench.batch(1, 5))
        await asyncio.sleep(0)
        assert not early.done()
        bench.announce(1, 1)
        assert await early == [second]

    run(body)


@pytest.mark.parametrize(
    ("version", "model", "timeout", "kind", "message"),
    [
        (0, "model0", 0.0, ConflictError, "version 0 of 'model0' goes back: 1 is current"),
        (1, "other", 0.0, ConflictError, "unknown model_id 'other'"),
        (1, "model0", -1.0, CallerError, "timeout must be"),
        (1, "model0", float("nan"), CallerError, "timeout must be"),
        (1, "model0", 1e9, CallerError, "timeout must be"),
        (1, "model0", 0.0, DeadlineError, r"2 more groups \(0 of 2 ready\); RaaS: none"),
        (2, "model0", 0.0, DeadlineError, "version 2 of 'model0' to be announced; 1 is current"),
    ],
)
def test_wrong_asking(version: int, model: str, timeout: float, kind: type[Exception], message: str) -> None:
    async def body() -> None:
        bench = Bench(batch=2)
        bench.announce(1, 1)
        with pytest.raises(kind, match=message):
            await bench.serving.batch(m.BatchRequest(model_id=model, version=version, timeout=timeout))

    run(body)


def test_a_failed_run_tells_who_waits_and_who_asks_later() -> None:
    async def body() -> None:
        bench = Bench(batch=1)
        waiting = asyncio.create_task(bench.batch(0, 5))
        await asyncio.sleep(0)
        bench.serving.fail(WorkflowError("Traceback: boom"))
        with pytest.raises(WorkflowError, match="boom"):
            await waiting
        with pytest.raises(WorkflowError, match="boom"):
            await bench.batch(0)
        assert bench.serving.told.is_set()

    run(body)


def test_batch_statistics() -> None:
    async def body() -> None:
        bench = Bench(batch=2, eta=2)
        bench.announce(1, 1)
        bench.push(0, 1)
        bench.push(1, 1, 1)
        reply = await bench.serving.batch(m.BatchRequest(model_id="model0", version=1, timeout=0))
        stats = reply.buffer_stats
        assert stats["buffer/staleness_mean"] == pytest.approx(0.2)
        assert (stats["buffer/two_versions"], stats["trajectories_with_two_versions"]) == (1, 1)
        assert (stats["buffer/trajectories"], stats["buffer/sampled_tokens"]) == (2, 5)
        assert all(isinstance(value, float) for value in stats.values())

    run(body)


def test_stale_drops_are_counted_by_length_decile() -> None:
    async def body() -> None:
        bench = Bench(batch=20, eta=0)
        for length in range(1, 11):
            bench.push(*[0] * length)
        bench.announce(1, 1)
        assert dict(bench.serving.stale_deciles) == dict.fromkeys(range(10), 1)

    run(body)


def test_earliest_deadline_first_serves_the_oldest_version_first() -> None:
    async def body() -> None:
        bench = Bench(batch=2, eta=9, order="edf")
        for step in range(1, 8):
            bench.announce(step, step)
        ids = [bench.push(version) for version in (7, 3, 5, 3)]
        assert await bench.batch(7) == [ids[1], ids[3]]

    run(body)


def test_a_full_buffer_evicts_with_a_reason_and_frees_the_place() -> None:
    async def body() -> None:
        bench = Bench(batch=2, max_groups=2)
        ids = [bench.push(0) for _ in range(4)]
        assert bench.books.ledger.counters.dropped == {DropReason.EVICTED: 2}
        assert bench.books.admissions["model0"].accepted == 2
        assert await bench.batch(0) == ids[2:]
        bench.books.ledger.validate()

    run(body)


def test_a_batch_replays_its_share_of_what_was_trained_and_counts_it_apart() -> None:
    async def body() -> None:
        bench = Bench(batch=4, eta=2, replay_ratio=0.5, replay_policy="newest")
        first = [bench.push(0) for _ in range(4)]
        assert await bench.batch(0) == first  # nothing was trained that could be replayed
        bench.announce(1, 1)
        second = [bench.push(1) for _ in range(2)]
        reply = await bench.serving.batch(m.BatchRequest(model_id="model0", version=1, timeout=0))
        assert reply.batch.group_id.tolist() == [*second, first[3], first[2]]
        assert reply.buffer_stats["buffer/replayed"] == 2
        assert await bench.batch(1) == [*second, first[3], first[2]]
        bench.announce(2, 2)
        counters = bench.books.ledger.counters
        assert (counters.trained, counters.replayed) == (6, 2)
        assert bench.books.admissions["model0"].accepted == 8
        bench.books.admissions["model0"].validate(counters.states, counters.trained, counters.replayed)
        bench.books.ledger.validate()

    run(body)


def test_a_replay_is_within_the_bound_or_does_not_happen() -> None:
    async def body() -> None:
        bench = Bench(batch=2, eta=1, replay_ratio=0.5)
        first = [bench.push(0), bench.push(0)]
        assert await bench.batch(0) == first
        bench.announce(1, 1)
        third = bench.push(1)
        served = await bench.batch(1)
        assert served[0] == third
        assert served[1] in first  # version 0 is one step old
        bench.announce(2, 2)
        bench.push(2)
        # version 0 is two steps old: only what version 1 sampled may train again
        assert (await bench.batch(2))[1] == third

    run(body)


def test_settling_leaves_what_may_be_replayed() -> None:
    async def body() -> None:
        bench = Bench(batch=1, eta=2, replay_ratio=0.5)
        for step in range(1, 6):
            bench.push(step - 1)
            await bench.batch(step - 1)
            bench.announce(step, step)
            bench.serving.settle("model0", step)
        assert bench.books.ledger.trained("model0") == [4, 5]

    run(body)


def test_a_group_that_comes_before_a_restored_trainer_has_announced_chooses_no_replays() -> None:
    async def body() -> None:
        bench = Bench(batch=2, eta=2, replay_ratio=0.5)
        for _ in range(2):
            bench.push(0)
        await bench.batch(0)
        bench.announce(1, 1)
        request = m.ReadyRequest(
            train_batch_size=2, sender_endpoint="h:2", model_id="model0", recovered_step=1, recovered_version=1
        )
        bench.policies.make_ready(request)
        bench.push(0)  # its version is known, the trainer's is not
        bench.push(0)
        bench.announce(2, 1)
        assert len(await bench.batch(2)) == 2
        assert bench.books.ledger.replays("model0") != []

    run(body)
