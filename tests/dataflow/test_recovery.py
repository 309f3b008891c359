"""A Dataflow that dies, a trainer that dies: what was promised is kept, and every occurrence trains once."""

import asyncio
import functools
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.core.data import Batch, Failed
from astraflow.core.protocol import messages as m
from astraflow.dataflow.audit import audit
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.ledger import State
from astraflow.dataflow.scripted import Outcome, Rehearsal, ScriptedRaaS, ScriptedTrainer, example_rows
from astraflow.dataflow.service import LEASE_FACTOR
from astraflow.dataflow.store import LedgerStore
from astraflow.errors import ConfigError, ConflictError

MakeSettings = Callable[..., DataflowSettings]
B = 4
"""Groups of a batch."""


def synchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


def script(task: m.Task, version: int) -> list[float]:
    return [0.0, 1.0]


def raas(name: str = "a", **more: object) -> ScriptedRaaS:
    return ScriptedRaaS(name, Rehearsal.TOKEN, script, **more)  # type: ignore[arg-type]


def groups_of(batch: Batch) -> list[int]:
    return sorted(set(batch.group_id.tolist()))


def same(one: Batch, other: Batch) -> bool:
    fields = [name for name in Batch.__struct_fields__ if name != "extra"]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in fields)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


class Run:
    """A run directory whose Dataflow is started again and again."""

    def __init__(self, settings: DataflowSettings, path: Path) -> None:
        self.settings = settings
        self.path = path

    def dataflow(self, rows: int = 50) -> Rehearsal:
        return Rehearsal(self.settings, store=LedgerStore(self.path / "ledger"), rows=example_rows(rows))


@pytest.fixture
def run(make_settings: MakeSettings, tmp_path: Path) -> Run:
    return Run(make_settings(), tmp_path)


@synchronous
async def test_a_batch_that_was_served_is_served_again_by_the_next_dataflow(run: Run) -> None:
    async with run.dataflow().running() as first:
        await first.join(raas())
        trainer = first.trainer(2 * B)
        await trainer.begin()
        await trainer.train()
        reply = await trainer.batch()
        before = first.service.books.ledger.counters
    async with run.dataflow().running() as second:
        again = ScriptedTrainer(second.client, batch_size=2 * B)
        again.version, again.step = trainer.version, trainer.step
        assert same((await again.batch()).batch, reply.batch)
        counters = second.service.books.ledger.counters
        assert (counters.issued, counters.trained) == (before.issued, before.trained) == (counters.asked, B)
        await second.join(raas("b"))
        again.version, again.step = 2, 2
        await again.announce()
        await again.train()
        assert second.service.books.ledger.counters.trained == 3 * B
        second.service.books.ledger.validate()


@synchronous
async def test_the_cursor_goes_on_where_it_was_and_numbers_do_not_repeat(run: Run) -> None:
    prompts = []
    for _ in range(3):
        async with run.dataflow(rows=40).running() as dataflow:
            await dataflow.join(raas())
            trainer = dataflow.trainer(2 * B)
            if dataflow.service.policies.get("model0").ready is None:
                await trainer.begin()
            policy = dataflow.service.policies.get("model0")
            trainer.version, trainer.step = policy.version, policy.step
            for _ in range(3):
                batch = (await trainer.train()).batch
                prompts += batch.prompt_id[::2].tolist()
    assert len(prompts) == len(set(prompts)) == 9 * B


@synchronous
async def test_a_trainer_that_is_restored_trains_the_later_steps_again(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas())
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        first = await trainer.train()
        await dataflow.client.save_buffer("model0", 1)
        later = {g for _ in range(2) for g in groups_of((await trainer.train()).batch)}
        served = await trainer.batch()
        await trainer.recover(step=1)
        assert trainer.version == 4  # the highest number seen, and one
        ledger = dataflow.service.books.ledger
        ledger.validate()
        assert ledger.counters.trained == B
        assert ledger.counters.rewound == 2 * B
        seen: list[int] = []
        for _ in range(8):
            seen += groups_of((await trainer.train()).batch)
        assert len(seen) == len(set(seen))
        assert not set(seen) & set(groups_of(first.batch))
        # tokens of the versions that were left behind train no more, their occurrences do
        assert later | set(groups_of(served.batch)) <= set(seen)
        ledger.validate()
        assert ledger.counters.dropped.total() == 0


@synchronous
async def test_tokens_of_an_abandoned_version_go_and_their_occurrence_runs_again(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        peer = raas(hold=True, max_concurrency=B)
        await dataflow.join(peer)
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        step = asyncio.create_task(trainer.train())
        await until(lambda: len(peer.running) == B)
        await peer.finish()
        await step
        await until(lambda: peer.version == 1 and len(peer.running) == B)
        old = list(peer.running)
        await trainer.recover(step=0)
        assert await peer.finish(old, versions=[0, 1, 1]) == B  # sampled across the version that is no more
        ledger = dataflow.service.books.ledger
        await until(lambda: ledger.counters.lost_leases == B)
        assert ledger.counters.dropped.total() == 0
        assert ledger.counters.states[State.READY] == 0 or set(old).isdisjoint(peer.running)
        ledger.validate()


@synchronous
async def test_after_a_recovery_a_raas_gets_work_only_with_the_new_version(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        peer = raas()
        await dataflow.join(peer)
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        for _ in range(3):
            await trainer.train()
        request = m.ReadyRequest(
            train_batch_size=2 * B, sender_endpoint="h:9", model_id="model0", recovered_step=1, recovered_version=1
        )
        assert (await dataflow.client.ready(request)).next_version == 4
        assert dataflow.service.pool.serving == []
        taken = len(peer.submitted)
        trainer.version, trainer.step = 4, 1
        await trainer.announce()
        for _ in range(3):
            await trainer.train()
        assert min(version for _, _, version in peer.submitted[taken:]) >= 4
        with pytest.raises(ConflictError, match="goes back"):
            await ScriptedTrainer(dataflow.client, batch_size=2 * B).announce()


@synchronous
async def test_a_ledger_of_another_dataset_is_refused(run: Run) -> None:
    async with run.dataflow(rows=10).running():
        pass
    with pytest.raises(ConfigError, match="use another run directory"):
        run.dataflow(rows=11)


@synchronous
async def test_a_run_goes_on_with_the_rows_that_it_began_with_and_no_others(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def dataflow(rows: list[dict[str, Any]], scored: list[dict[str, Any]]) -> Rehearsal:
        store = LedgerStore(run.path / "ledger")
        return Rehearsal(run.settings, store=store, rows=rows, eval_rows={"held_out": scored})

    odd = {"ünïcode": "\ud800", "big": 2**70, "nested": [{"b": None, "a": [1.5, True, float("inf")]}]}
    rows = [{**row, **odd} for row in example_rows(10)]
    async with dataflow(rows, rows).running():
        pass
    others = [
        [*rows[1:], rows[0]],
        [{**row, "answer": "0"} if i == 7 else row for i, row in enumerate(rows)],
        [{**row, "nested": [{"b": None, "a": [1.5, False, float("inf")]}]} for row in rows],
        [{**row, "big": 2**70 + 1} for row in rows],
    ]
    for other in others:
        with pytest.raises(ConfigError, match=r"begun with other rows.*rollout_dataset \(10 rows, .*restore the rows"):
            dataflow(other, rows)
    assert "other rows" not in caplog.text
    same_rows = [dict(reversed(row.items())) for row in rows]  # a column's place means nothing
    async with dataflow(same_rows, rows[:5]).running():
        assert "eval_datasets.held_out has other rows than before" in caplog.text


@synchronous
async def test_a_lost_ledger_of_a_run_that_has_trained_is_refused(run: Run, tmp_path: Path) -> None:
    state = tmp_path / "recover" / "model0" / "step_000000"
    state.mkdir(parents=True)  # before the first step there is nothing to lose
    async with run.dataflow().running():
        pass
    state.rename(state.with_name("step_000046"))
    async with run.dataflow().running():
        pass
    shutil.rmtree(tmp_path / "ledger")
    for _ in range(2):  # what the refused one has left is no ledger either
        with pytest.raises(ConfigError, match=r"/ledger is empty.*step_000046.*restore the ledger") as refusal:
            run.dataflow()
        assert str(tmp_path / "ledger") in str(refusal.value)


@synchronous
async def test_admission_after_a_rewind_has_no_burst_and_no_zero(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas(max_concurrency=1000))
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        for _ in range(4):
            await trainer.train()
        await trainer.recover(step=2)
        admission = dataflow.service.books.admissions["model0"]
        counters = dataflow.service.books.ledger.counters
        assert admission.accepted + admission.running <= (admission.max_staleness + 2 + 1) * B + 2 * B
        states = counters.states
        held = states[State.DONE] + states[State.READY] + states[State.SERVED]
        assert admission.accepted == 2 * B + held
        for _ in range(4):
            await trainer.train()
        dataflow.service.books.ledger.validate()


@synchronous
async def test_a_trainer_that_is_restored_at_the_same_state_twice_goes_back_twice(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas())
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        for _ in range(3):
            await trainer.train()
        for number in (4, 7):  # its requests are equal; the numbers go on
            await trainer.recover(step=1, version=1)
            assert (trainer.version, dataflow.service.policies.get("model0").step) == (number, 1)
            for _ in range(2):
                await trainer.train()
        assert dataflow.service.books.ledger.counters.trained == 3 * B


@synchronous
async def test_a_trainers_checkpoint_lets_go_of_what_it_holds(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas())
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        for _ in range(3):
            await trainer.train()
        ledger = dataflow.service.books.ledger
        assert len(ledger.trained("model0")) == 3 * B
        await dataflow.client.save_buffer("model0", 2)
        assert len(ledger.trained("model0")) == B
        await dataflow.client.save_buffer()  # the only model's, up to its last step
        assert ledger.trained("model0") == []
        with pytest.raises(ConflictError, match="unknown model_id"):
            await dataflow.client.save_buffer("model7")
        assert ledger.settled("model0") == 3
        ledger.validate()
    store = LedgerStore(run.path / "ledger")
    assert store.kept <= ledger.kept
    assert store.load().snapshot is not None
    store.close()


@synchronous
async def test_a_trainer_goes_back_to_its_older_state_and_no_further(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas())
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        for _ in range(3):
            await trainer.train()
        await dataflow.client.save_buffer("model0", 2)  # it keeps states of the steps 2 and 3
        await trainer.train()
    async with run.dataflow().running() as dataflow:  # what was let go is known to the next one too
        await dataflow.join(raas("b"))
        trainer = dataflow.trainer(2 * B)
        ledger = dataflow.service.books.ledger
        before = ledger.snapshot()
        with pytest.raises(ConflictError, match=r"back at step 1, .* up to 2 .*recover/model0.*new run directory"):
            await trainer.recover(step=1)
        assert ledger.snapshot() == before
        assert dataflow.service.policies.get("model0").step == 4
        await trainer.recover(step=2)
        for _ in range(3):
            await trainer.train()
        assert ledger.counters.trained == 5 * B
        ledger.validate()
    assert audit(run.path / "ledger").trained == 5 * B


@synchronous
async def test_a_trainer_ahead_of_its_ledger_is_refused_and_changes_nothing(run: Run, tmp_path: Path) -> None:
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas())
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        for _ in range(2):
            await trainer.train()
    shutil.copytree(run.path / "ledger", tmp_path / "copy")
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas("b"))
        trainer = dataflow.trainer(2 * B)
        await trainer.recover(step=1, version=1)
        for _ in range(3):
            await trainer.train()
        state = (trainer.step, trainer.version)
    assert state == (4, 6)
    shutil.rmtree(run.path / "ledger")
    shutil.copytree(tmp_path / "copy", run.path / "ledger")  # a backup is put back; the trainer's state is newer
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas("c"))
        trainer = dataflow.trainer(2 * B)
        ledger = dataflow.service.books.ledger
        before = ledger.snapshot()
        # ahead in steps, and of a later lineage, whose numbers would be issued again
        for step, version in (state, (3, 4), (2, 5)):
            expected = rf"back at step {step}, version {version}, .*up to step 2, version 2"
            with pytest.raises(ConflictError, match=expected):
                await trainer.recover(step, version)
        assert ledger.snapshot() == before
        status = await dataflow.client.status()
        assert [status["agents"]["model0"][key] for key in ("step", "highest", "version")] == [2, 2, 2]
        await trainer.recover(step=2, version=2)
        await trainer.train()
        ledger.validate()
    report = audit(run.path / "ledger")
    assert (report.conserved, report.trained) == (True, 3 * B), report.problems


@synchronous
async def test_a_trainer_whose_ledger_has_not_begun_is_refused(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        for step, version in ((3, 3), (0, 7)):
            with pytest.raises(ConflictError, match="up to step 0"):
                await dataflow.trainer(2 * B).recover(step, version)
        await dataflow.trainer(2 * B).recover(step=0)  # nothing is lost before the first step


@synchronous
async def test_after_a_power_loss_a_batch_whose_bytes_are_gone_is_made_anew(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas())
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        await trainer.train()
        await trainer.batch()
    for segment in (run.path / "ledger" / "segments").iterdir():
        segment.write_bytes(b"")  # the database was on the disk already, these were not
    async with run.dataflow().running() as dataflow:
        ledger = dataflow.service.books.ledger
        assert ledger.counters.states[State.SERVED] == 0
        again = ScriptedTrainer(dataflow.client, batch_size=2 * B)
        again.version, again.step = 2, 2
        # a trainer that lived on has trained the old one
        with pytest.raises(ConflictError, match="trained on no batch"):
            await again.announce()
        await dataflow.join(raas("b"))
        await again.recover(step=1, version=1)
        for _ in range(3):
            await again.train()
        assert ledger.counters.trained == 4 * B
        ledger.validate()
    report = audit(run.path / "ledger")
    assert (report.conserved, report.trained) == (True, 4 * B), report.problems


@synchronous
async def test_without_checkpoints_a_trainer_goes_back_as_far_as_configured(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    run = Run(make_settings(ledger={"keep_steps": 2}), tmp_path)
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas())
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        for _ in range(5):
            await trainer.train()
        assert len(dataflow.service.books.ledger.trained("model0")) == 2 * B
        await dataflow.service.books.journal.durable()
    store = LedgerStore(run.path / "ledger")
    assert len(store.kept) <= 2 * B + dataflow.service.books.ledger.counters.in_flight
    store.close()


@synchronous
async def test_a_damaged_payload_of_a_ready_group_runs_again(run: Run) -> None:
    async with run.dataflow().running() as dataflow:
        await dataflow.join(raas())
        trainer = dataflow.trainer(2 * B)
        await trainer.begin()
        await trainer.train()
        await until(lambda: dataflow.service.books.ledger.counters.states[State.READY] > 0)
    ready = dataflow.service.books.ledger.counters.states[State.READY]
    for segment in (run.path / "ledger" / "segments").iterdir():
        segment.write_bytes(b"")
    async with run.dataflow().running() as dataflow:
        counters = dataflow.service.books.ledger.counters
        assert counters.states[State.READY] == 0
        assert counters.states[State.QUEUED] >= ready
        dataflow.service.books.ledger.validate()


@synchronous
async def test_a_raas_that_lives_on_keeps_its_work_when_dataflow_is_started_again(run: Run) -> None:
    peer = raas("a", hold=True)
    async with run.dataflow().running() as first:
        await first.join(peer, incarnation="one")
        trainer = first.trainer(2 * B)
        await trainer.begin()
        await until(lambda: len(peer.running) == 8)
        leased = set(peer.running)
        forgotten = sorted(leased)[:2]
        for task_id in forgotten:  # as if the order had not reached it
            del peer.running[task_id]
    async with run.dataflow().running() as second:
        ledger = second.service.books.ledger
        await second.join(peer, incarnation="one")
        await until(lambda: set(peer.running) >= leased)
        assert second.service.pool.live[0].inflight == 8
        await peer.finish(sorted(leased))
        again = ScriptedTrainer(second.client, batch_size=2 * B)
        again.version, again.step = trainer.version, trainer.step
        await again.train()
        assert (ledger.counters.lost_leases, ledger.counters.orphans) == (0, 0)
        second.service.pool.validate()


@pytest.mark.parametrize("shift", [-5e5, 0.0, 5e5])
@synchronous
async def test_a_lease_outlives_its_clock(run: Run, shift: float) -> None:
    """The next Dataflow runs on another machine, or after a reboot: its clock has nothing to do with that before."""
    now = 1e6
    lease_s = LEASE_FACTOR * run.settings.dataflow.episode_timeout_s
    peer = raas("a", hold=True)

    def dataflow() -> Rehearsal:
        return Rehearsal(run.settings, store=LedgerStore(run.path / "ledger"), clock=lambda: now)

    async with dataflow().running() as first:
        await first.join(peer, incarnation="one")
        trainer = first.trainer(2 * B)
        await trainer.begin()
        await until(lambda: len(peer.running) == 8)
    now += shift
    async with dataflow().running() as second:
        ledger = second.service.books.ledger
        await second.join(peer, incarnation="one")
        second.service.acquisition.expire()
        assert ledger.counters.lost_leases == 0
        now += 5.0
        await peer.finish(list(peer.running)[:2])
        await until(lambda: ledger.counters.states[State.READY] == 2)
        [instance] = (await second.client.raas_pool())["instances"]
        assert instance["group_s"] is None  # nobody knows how long it took
        now += lease_s - 6.0
        second.service.acquisition.expire()
        assert ledger.counters.lost_leases == 0
        now += 1.0  # the whole of a lease after it was taken over
        second.service.acquisition.expire()
        assert ledger.counters.lost_leases == 6
        ledger.validate()
        left = ledger.snapshot()
    now -= shift
    async with dataflow().running() as third:  # the log says what was lost, whatever the time is
        assert third.service.books.ledger.counters.lost_leases >= left.lost_leases
        third.service.books.ledger.validate()
    assert audit(run.path / "ledger").conserved


@synchronous
async def test_the_work_of_another_process_of_that_name_goes_to_others(run: Run) -> None:
    async with run.dataflow().running() as first:
        peer = raas("a", hold=True)
        await first.join(peer, incarnation="one")
        await first.trainer(2 * B).begin()
        await until(lambda: len(peer.running) == 8)
    async with run.dataflow().running() as second:
        ledger = second.service.books.ledger
        assert ledger.counters.states[State.LEASED] == 8
        await second.join(raas("a", hold=True), incarnation="two")
        assert ledger.counters.lost_leases == 8
        ledger.validate()


@synchronous
async def test_replays_go_on_after_a_restart_and_a_rewind(make_settings: MakeSettings, tmp_path: Path) -> None:
    replay = {"ratio": 0.5, "policy": "uniform"}
    run = Run(make_settings(buffer={"replay": replay, "max_staleness": 3}, ledger={"keep_steps": 0}), tmp_path)
    async with run.dataflow().running() as first:
        await first.join(raas())
        trainer = first.trainer(2 * B)
        await trainer.begin()
        trained = [groups_of((await trainer.train()).batch) for _ in range(3)]
        assert len(set(trained[1]) & set(trained[0])) == B // 2
        reply = await trainer.batch()
        assert reply.buffer_stats["buffer/replayed"] == B // 2
        before = first.service.books.ledger.counters
        assert (before.trained, before.replayed) == (B + 2 * B // 2, 2 * B // 2)
    # as it stood when it had stopped: more groups may have ended meanwhile
    pool = [group.group_id for group in first.service.serving.held("model0")]
    async with run.dataflow().running() as second:
        again = ScriptedTrainer(second.client, batch_size=2 * B)
        again.version, again.step = trainer.version, trainer.step
        assert same((await again.batch()).batch, reply.batch)
        held = [group.group_id for group in second.service.serving.held("model0")]
        assert set(groups_of(reply.batch)) <= set(held) <= set(pool)
        await second.join(raas("b"))
        again.version, again.step = again.version + 1, again.step + 1
        await again.announce()
        await again.train()
        await again.recover(step=4)
        ledger = second.service.books.ledger
        c = ledger.counters
        assert c.trained + c.replayed == 4 * B
        for _ in range(3):
            assert len(groups_of((await again.train()).batch)) == B
        assert c.trained + c.replayed == 7 * B
        assert c.dropped.total() == 0
        ledger.validate()
    report = audit(run.path / "ledger")
    assert report.conserved, report.problems
    assert report.replayed == c.replayed


@synchronous
async def test_bound_and_batch_in_samples_hold_over_a_restart(make_settings: MakeSettings, tmp_path: Path) -> None:
    def short(task: m.Task, version: int) -> list[Outcome]:
        return [0.0, 1.0, Failed("crash"), 0.5] if task.group_id % 2 else [0.0, 1.0, Failed("crash"), Failed("crash")]

    run = Run(make_settings(n_samples=4, buffer={"count": "samples", "max_staleness": 1}), tmp_path)
    samples, eta = 12, 1

    def check(dataflow: Rehearsal) -> None:
        admission = dataflow.service.books.admissions["model0"]
        assert admission.accepted + admission.running <= (eta + admission.step + 1) * samples + 3
        dataflow.service.books.ledger.validate()

    async with run.dataflow().running() as first:
        await first.join(ScriptedRaaS("a", Rehearsal.TOKEN, short, max_concurrency=50))
        trainer = first.trainer(samples)
        await trainer.begin()
        for _ in range(3):
            reply = await trainer.train()
            rows = len(reply.batch.lengths)
            assert samples <= rows < samples + 4  # groups of two and three, until there are twelve samples
            assert reply.buffer_stats["buffer/groups"] == len(groups_of(reply.batch)) > 3
            check(first)
        reply = await trainer.batch()
        await until(lambda: first.service.serving.ready("model0") > 0)
        before = first.service.books.admissions["model0"]
    async with run.dataflow().running() as second:
        after = second.service.books.admissions["model0"]
        assert after.samples == before.samples == 4
        check(second)
        again = ScriptedTrainer(second.client, batch_size=samples)
        again.version, again.step = trainer.version, trainer.step
        assert same((await again.batch()).batch, reply.batch)
        await second.join(ScriptedRaaS("b", Rehearsal.TOKEN, short, max_concurrency=50))
        again.version, again.step = again.version + 1, again.step + 1
        await again.announce()
        for _ in range(3):
            await again.train()
            check(second)
    report = audit(run.path / "ledger")
    assert report.conserved, report.problems
