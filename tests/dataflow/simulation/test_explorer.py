"""The explorer finds nothing wrong, and finds each seeded bug."""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from astraflow.core.data import Group
from astraflow.core.data.trajectory import Episode
from astraflow.core.protocol import messages as m
from astraflow.core.workflow.api.group import EpisodeTask, GroupPolicy
from astraflow.core.workflow.api.workflow_api import EpisodeWorkflow
from astraflow.dataflow.barrier import VersionBarrier
from astraflow.dataflow.data_acquisition import DataAcquisition
from astraflow.dataflow.data_serving import DataServing
from astraflow.dataflow.ledger import DropReason, Finish
from astraflow.dataflow.policies import Policies, Policy, Published
from astraflow.dataflow.raas_pool import RaaSPool
from astraflow.dataflow.recovery import Recovery
from astraflow.dataflow.service import AstraFlow
from astraflow.dataflow.simulation.explorer import FEW, SMALL, Exploration, by_chance, by_plan, drawn, explore
from astraflow.dataflow.simulation.scenario import LogNormal, Mishaps, Scenario
from astraflow.dataflow.staleness import Admission
from astraflow.errors import ConflictError


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


PLAIN = Mishaps(every_s=1.0, none=3, kill_trainer=1, lose_trainer=1, crash_dataflow=1, bad_request=1)
"""Programs that die, and nobody who is only nearly dead."""


def found(*kinds: str, mishaps: Mishaps = PLAIN) -> Exploration:
    """Explore by chance until something is found; the first finding is of one of these kinds."""
    exploration = explore(by_chance(msgspec.structs.replace(SMALL, mishaps=mishaps)), most=1000, stop_at_first=True)
    assert exploration.findings, f"not found in {exploration.worlds} worlds"
    assert set(kinds) & {finding.violation.kind for finding in exploration.findings}
    return exploration


def test_worlds_by_chance_hold_every_invariant() -> None:
    exploration = explore(by_chance(), most=80)
    assert exploration.findings == []
    assert set(exploration.mishaps) == set(SMALL.mishaps.kinds()) - {"none"}
    assert exploration.events > 40_000


def test_worlds_are_configured_in_every_way() -> None:
    drawn_ones = [drawn(SMALL, seed) for seed in range(60)]
    for name, values in {
        "policies": {1, 2, 3},
        "barrier": {"barrier", "independent"},
        "eval_steps": {0, 2},
        "curated": {False, True},
        "order": {"fifo", "edf"},
        "replay_ratio": {0.0, 0.5},
        "count": {"groups", "samples"},
        "stale_policy": {"drop", "mask"},
        "max_staleness": {0, 1, 2},
    }.items():
        assert {getattr(scenario, name) for scenario in drawn_ones} == values, name


def test_curated_worlds_hold_every_invariant_and_replay() -> None:
    replayed = 0
    worlds = by_chance(msgspec.structs.replace(SMALL, curated=True, order="edf", replay_ratio=0.5, steps=6))
    for _, world in zip(range(60), worlds, strict=False):  # in this order: no world is made that is not run
        world.run()
        assert world.violations == [], (world.choices.name, world.violations)
        replayed += world.checks.auditor.ledger.counters.replayed
    assert replayed > 100


def test_worlds_by_plan_hold_every_invariant() -> None:
    exploration = explore(by_plan(), most=120)
    assert exploration.findings == []
    assert exploration.worlds == 120


def test_a_plan_names_the_world_that_it_makes() -> None:
    worlds = by_plan(FEW)
    quiet_world = next(worlds)
    quiet_world.run()
    late = next(worlds)
    late.run()
    assert (quiet_world.choices.name, late.choices.name) == ("plan {}", "plan {0: 1}")


def test_the_same_seed_makes_the_same_world() -> None:
    first, second = next(by_chance(first_seed=5)), next(by_chance(first_seed=5))
    first.run()
    second.run()
    assert first.disk.records == second.disk.records
    assert first.events == second.events


def test_a_limit_that_is_divided_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public systems have divided the limit in samples by the group size, and then again."""
    right = Admission.__init__

    def divided_again(self: Admission, batch: int, max_staleness: int, *restored: int) -> None:
        right(self, batch // SMALL.n_samples, max_staleness, *restored)

    monkeypatch.setattr(Admission, "__init__", divided_again)
    found("starvation")


def test_places_of_lost_samples_that_are_not_given_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group counts for the samples that it began with for as long as it is held."""
    monkeypatch.setattr(Admission, "_weight", lambda self, state, samples: self.samples or 1)
    found("starvation")


def test_places_of_replays_that_are_given_away_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What later batches will train again has no place of its own."""
    right = Admission.__init__

    def nothing_reserved(self: Admission, *counts: int) -> None:
        right(self, *counts)
        self.reserved = 0

    monkeypatch.setattr(Admission, "__init__", nothing_reserved)
    found("admission")


def test_a_batch_that_waits_for_new_groups_though_replays_fill_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_replays(self: DataServing, policy: Policy, replays: Sequence[Group]) -> int:
        return self._needed(policy) - self._available(policy, [])

    monkeypatch.setattr(DataServing, "_lacks", without_replays)
    found("starvation")


def test_a_lost_wake_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens while the loop works is forgotten: it clears its wake-up after the work, not before."""

    async def dispatch(self: AstraFlow) -> None:
        while True:
            await self._wake.wait()
            self.acquisition.paused = self.stopping.is_set() or (self.evaluation.running and self.evaluation.exclusive)
            for order in (*self.evaluation.assign(), *self.acquisition.assign()):
                self.links.send(order)
            for instance in self.pool.left:
                self._let_go(instance.key)
            await asyncio.sleep(0.05)
            self._wake.clear()

    monkeypatch.setattr(AstraFlow, "_dispatch_loop", dispatch)
    found("starvation", "deadlock")


def test_a_policy_that_is_gone_and_still_waited_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trainer was restored, and died before it had announced a version: nobody's groups begin any more."""

    def whoever_is_there(self: Policies, absent: Collection[str] = ()) -> list[str]:
        return [policy.model_id for policy in self.all if policy.current is None]

    monkeypatch.setattr(Policies, "unannounced", whoever_is_there)
    found("standstill", mishaps=Mishaps(every_s=1.0).only(["lose_trainer"]))


def test_a_barrier_that_waits_for_groups_which_it_holds_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One policy's groups are dropped, the others' bound is full, and they wait for it to make its step."""
    monkeypatch.setattr(VersionBarrier, "in_vain", lambda self, starved, full: set())
    found("deadlock")


def test_a_phantom_barrier_member_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is refused has joined the barrier already."""
    right = AstraFlow.ready

    async def ready(self: AstraFlow, request: m.ReadyRequest) -> m.ReadyReply:
        self.announcements.barrier.join(request.model_id)
        return await right(self, request)

    monkeypatch.setattr(AstraFlow, "ready", ready)
    found("barrier")


def test_a_group_blocked_by_one_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group ends with its last sample, and nothing ends a sample that is stuck."""

    async def wait_for_ever(self: EpisodeWorkflow, engine: Any, task: EpisodeTask, policy: GroupPolicy) -> Episode:
        trajectories = await self.run(engine, task)
        assert isinstance(trajectories, list)
        return Episode(tuple(trajectories))

    monkeypatch.setattr(EpisodeWorkflow, "_episode", wait_for_ever)
    found("blocked group")


SEEDS = 500
"""Worlds within which each of the following is found."""


def found_within_seeds(words: Collection[str], *befalls: str, small: Scenario = SMALL) -> None:
    """Explore worlds that these mishaps alone befall until something is found, which is told in some of these words."""
    scenario = msgspec.structs.replace(small, mishaps=Mishaps(every_s=1.0).only(befalls))
    exploration = explore(by_chance(scenario), most=SEEDS, stop_at_first=True)
    assert exploration.findings, f"not found in {exploration.worlds} worlds"
    told = [f"{finding.violation.kind}: {finding.violation.text}" for finding in exploration.findings]
    assert any(word in text for text in told for word in words), told


def test_a_late_result_that_ends_the_next_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result without a lease is written down for whoever holds the group now."""

    def ignore(self: DataAcquisition, key: str, item: m.PulledItem) -> None:
        entry = self._books.ledger.get(item.lease.group_id)
        if entry is not None and entry.owner == key:
            self._books.record(Finish(entry.group_id, key, (), DropReason.REJECTED, attempt=entry.lease.attempt))

    monkeypatch.setattr(DataAcquisition, "_ignore", ignore)
    found_within_seeds({"dropped as rejected"}, "late_raas")


def test_a_retry_that_overtakes_the_rewind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer's state is changed before what follows from it has been read and done, and nothing is locked."""

    async def ready(self: AstraFlow, request: m.ReadyRequest) -> m.ReadyReply:
        policy = self.policies.get(request.model_id)
        if self._checked(request):
            self.policies.replay_ready(request, self.pool.versions.seen(policy.model_id))
            await self.recovery.rewind(request)
            self._guards.supersede(policy.model_id)
            self.evaluation.abort(ConflictError("the trainer was started again"))
        elif not self.policies.is_retry(request):
            self.recovery.begin(request)
        with self._attending(policy.model_id):
            await self.books.journal.durable()
        return m.ReadyReply(next_version=policy.next_version)

    monkeypatch.setattr(AstraFlow, "ready", ready)
    found_within_seeds(
        {"standstill", "deadlock", "evaluation"}, "kill_trainer", "restore_trainer", "slow_disk", "break_connections"
    )


def test_two_services_of_one_name_that_evict_each_other_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaaSPool, "successor", lambda self, request, now: None)
    found_within_seeds({"same name"}, "twin_raas")


QUICK = msgspec.structs.replace(SMALL, latency=LogNormal(mean_s=0.1))
"""Here many groups end while an announcement is on its way; where they are slow, it is one world in some hundred."""


@pytest.mark.parametrize("small", [QUICK, pytest.param(SMALL, marks=pytest.mark.nightly)], ids=["quick", "small"])
def test_tokens_ahead_of_their_announcement_that_are_dropped_are_found(
    monkeypatch: pytest.MonkeyPatch, small: Scenario
) -> None:
    """A service has what its sender has; the announcement is on its way."""
    monkeypatch.setattr(DataAcquisition, "_is_early", lambda self, result: False)
    found_within_seeds({"dropped as lineage"}, "early_raas", "slow_disk", small=small)


def test_a_version_that_is_told_before_it_is_written_down_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Dataflow that dies then leaves services behind that serve what its successor has never heard of."""
    right = AstraFlow._accept

    def accept(self: AstraFlow, request: m.NotifyVersionRequest) -> Published | None:
        published = right(self, request)
        if published is not None:
            self.pool.versions.publish(published)
            self.links.news()
        return published

    monkeypatch.setattr(AstraFlow, "_accept", accept)
    found_within_seeds({"which is not written down"}, "slow_disk")


def test_a_trainer_ahead_of_an_older_ledger_that_is_let_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "_ahead", lambda self, policy, request: False)
    found_within_seeds({"exactly once"}, "restore_ledger")


@pytest.mark.nightly
def test_a_million_events_hold_every_invariant() -> None:
    """Joins, leaves, failures, silences, slow peers; one to three policies; half of a minute by plan besides."""
    million = explore(by_chance(), seconds=900.0, most=1500)
    assert million.findings == []
    assert million.events >= 10**6
    assert explore(by_plan(), seconds=30.0).findings == []


@pytest.mark.nightly
def test_a_world_of_three_policies_has_a_million_events() -> None:
    scenario = msgspec.structs.replace(
        SMALL,
        raas=40,
        concurrency=8,
        policies=3,
        n_samples=4,
        batch_groups=64,
        max_staleness=2,
        steps=300,
        stuck_share=0.001,
        look_s=0.5,
        longest_s=1e6,
        mishaps=Mishaps(every_s=30.0, most=10**9, none=3, kill_trainer=1, crash_dataflow=1, bad_request=1),
    )
    exploration = explore(by_chance(scenario), most=3)
    assert exploration.findings == []
    assert exploration.events >= 10**6
