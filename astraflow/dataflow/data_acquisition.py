"""From the dataset to finished groups: occurrences are issued, leased to RaaS and closed.

    assign    called by the dispatch loop; produces orders for the links
              waits for nothing; worth calling again when: a group ended, a version was announced or proved, a RaaS
              joined or left, an evaluation ended (all of these set the service's `wake`)
    results   called by the links' pull loops; consumes finished tasks → ledger → curation → serving

A RaaS that still serves an older version gets work only on places which that version can fill in time (see staleness).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from astraflow.core.config.ids import id_with
from astraflow.core.data import Failed, Group, LeaseId, Trajectory
from astraflow.core.data.trajectory import EpisodeResult, GroupResult, Row
from astraflow.core.protocol import messages as m
from astraflow.core.workflow.api.group import CUT
from astraflow.dataflow.books import Books
from astraflow.dataflow.curation import Curator, Occurrence, Outcome
from astraflow.dataflow.curriculum import Curriculum
from astraflow.dataflow.data_serving import DataServing
from astraflow.dataflow.ledger import (
    Curate,
    DropReason,
    Entry,
    Finish,
    Issue,
    Lease,
    LoseLeases,
    Orphan,
    State,
)
from astraflow.dataflow.policies import MOST_SKIPPED, Policies
from astraflow.dataflow.prompts import visit_of
from astraflow.dataflow.raas_link import Order
from astraflow.dataflow.raas_pool import Instance, RaaSPool
from astraflow.dataflow.routing import Affinity, fit, share_out
from astraflow.dataflow.statistics import RolloutStatistics
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.errors import DataError

log = logging.getLogger(__name__)

WORKFLOW_ID = "default"
"""The training workflow's id at every RaaS."""

REMEMBERED = 4096
"""Results without a lease that are known when they come again."""


@dataclass(frozen=True)
class Flow:
    """Where finished groups go: curation, then serving, with statistics and samples on the way."""

    curator: Curator
    serving: DataServing
    statistics: RolloutStatistics
    trajectories: TrajectoryLog
    observe: Callable[[Iterable[EpisodeResult]], None]
    """Sees every finished episode (LAW 27)."""


class DataAcquisition:
    """Keeps the RaaS busy with as many groups as admission allows."""

    def __init__(
        self,
        rows: Sequence[Row],
        curriculum: Curriculum,
        books: Books,
        pool: RaaSPool,
        policies: Policies,
        flow: Flow,
        *,
        lease_s: float,
        clock: Callable[[], float],
        session_key: str | None = None,
    ) -> None:
        """rows: by prompt_id, of all rollout datasets. lease_s: seconds until a lease without a result is lost.

        session_key: field of a row; rows with equal values go to the same RaaS, where it has room.
        """
        self.paused = False
        """No new work (an exclusive evaluation, draining)."""
        self._rows = rows
        self.cursor = curriculum
        self._books = books
        self._pool = pool
        self._policies = policies
        self._flow = flow
        self._lease_s = lease_s
        self._clock = clock
        self._session_key = session_key
        self._affinity = Affinity()
        # when these began is known by a clock that is no more
        self._taken_over = set(books.ledger.take_over(clock() + lease_s))
        self._ignored: dict[tuple[str, str], None] = {}
        """The newest results without a lease: who returned which."""

    # ---- out -------------------------------------------------------------------------------------------------------

    def assign(self) -> list[Order]:
        """Lease what may start now, lost leases first, to the RaaS with the most free room."""
        if self.paused or self._policies.unannounced(self._books.absent):
            return []
        states = self._books.ledger.counters.states
        queued, leased = states[State.QUEUED], states[State.LEASED]
        # what is queued counts as running already
        if self._books.capacity(leased + queued + 1) + queued <= 0:
            return []
        free = self._pool.with_room
        # what others still hold, suspect, leaving or expected back, takes no room from these
        most_running = leased + sum(i.available for i in free)
        most = self._books.capacity(most_running) + queued
        allowed = self._allowed(free, most_running, queued)
        room = {i.key: min(i.available, allowed[i.key]) for i in free}
        taken = {i.key: i.inflight for i in free}
        shares = fit(share_out(room, self._pool.weights(free, self._clock()), most, taken), allowed)
        for _ in range(sum(shares.values()) - queued):
            self.issue()
        sessions = {g: self._session(g) for g in self._books.ledger.queued(sum(shares.values()))}
        return [self._lease(key, group_ids) for key, group_ids in self._affinity.divide(sessions, shares).items()]

    def issue(self) -> None:
        """Ask for the next row."""
        prompt_id, epoch = self.cursor.next()
        self._books.record(Issue(prompt_id, epoch))

    def again(self, key: str) -> Order | None:
        """All that an instance has leased, to be asked for once more; None for nothing."""
        group_ids = self._books.ledger.leased(key)
        if not group_ids:
            return None
        self._pool.take(key, len(group_ids))
        return Order(key, WORKFLOW_ID, tuple(self._task(group_id) for group_id in group_ids))

    def expire(self) -> None:
        """Requeue what no RaaS answered in time. Who took it has failed: others are to have what it would take next."""
        late = self._books.ledger.late(self._clock())
        owners = dict.fromkeys(lease.owner for lease in late)
        moved = [moved for owner in owners for moved in self._books.record(LoseLeases.of(owner, late))]
        if moved:
            log.warning("%d leases are over their deadline and back in the queue", len(moved))
        for lost in moved:
            self._fail(lost.owner, f"no result within {self._lease_s:g} s")

    def _allowed(self, instances: Iterable[Instance], most_running: int, queued: int) -> dict[str, int]:
        """key → the groups that its versions let start; most instances serve the same ones."""
        known: dict[tuple[int, ...], int] = {}
        allowed = {}
        for instance in instances:
            steps = tuple(instance.verified[model_id].step for model_id in self._pool.model_ids)
            if steps not in known:
                by_model = dict(zip(self._pool.model_ids, steps, strict=True))
                known[steps] = self._books.capacity(most_running, by_model) + queued
            allowed[instance.key] = known[steps]
        return allowed

    def _session(self, group_id: int) -> str | None:
        entry = self._books.ledger.get(group_id)
        if self._session_key is None or entry is None:
            return None
        session = self._rows[entry.prompt_id].get(self._session_key)
        return None if session is None else str(session)

    def _lease(self, key: str, group_ids: list[int]) -> Order:
        self._books.record(Lease(tuple(group_ids), key, self._clock() + self._lease_s))
        return Order(key, WORKFLOW_ID, tuple(self._task(group_id) for group_id in group_ids))

    def _task(self, group_id: int) -> m.Task:
        entry = self._books.ledger.get(group_id)
        assert entry is not None
        lease = entry.lease
        return m.Task(
            task_id=self.task_id(entry),
            group_id=group_id,
            owner=lease.owner,
            attempt=lease.attempt,
            data=self._rows[entry.prompt_id],
        )

    def task_id(self, entry: Entry) -> str:
        """What a RaaS knows a lease by: it remembers tasks whose results were fetched, and runs none of them twice."""
        return id_with(str(self._rows[entry.prompt_id]["task_id"]), f"#{entry.group_id}.{entry.leases}")

    @property
    def _n_samples(self) -> int:
        """Episodes of an occurrence: what the workflow is given is the first model's."""
        return self._policies.all[0].n_samples

    def _abandoned(self, group: Group) -> bool:
        steps = self._policies.get(group.model_id).steps
        return bool(group.trajectories) and steps.abandoned(group.versions)

    # ---- back ------------------------------------------------------------------------------------------------------

    def results(self, key: str, items: list[m.PulledItem]) -> list[str]:
        """Close the occurrences that ended at an instance; results without a lease are ignored and counted.

        Returns the ids of those that are too early: the instance keeps them.
        """
        early = []
        for item in items:
            group_id = item.lease.group_id
            entry = self._books.ledger.get(group_id)
            if entry is None or item.lease.owner != key or item.lease != entry.lease:
                self._ignore(key, item)
                continue
            if self._is_early(item.result):
                early.append(item.task_id)
                continue
            self._books.arrived(group_id, item.result)
            row = self._rows[entry.prompt_id]
            occurrence = Occurrence(group_id, entry.prompt_id, str(row["task_id"]), entry.epoch)
            seconds = self._seconds(entry)
            outcomes, drop = self._curate(key, occurrence, item.result, seconds)
            if entry.only is not None:
                outcomes = [outcome for outcome in outcomes if outcome.key == entry.only]
                drop = drop if outcomes else drop or DropReason.FAILED
            if any(self._abandoned(o.group) for o in outcomes if o.key.model_id not in self._books.absent):
                # its tokens are dropped, the occurrence is not: a recovery loses none
                self._books.record(LoseLeases.of(key, [item.lease]))
                continue
            self._close(occurrence, item.lease, outcomes, drop)
        return early

    def _is_early(self, result: GroupResult | None) -> bool:
        """Has it tokens of a version that is not announced yet? Its sender is ahead of the announcement by a moment."""
        early = False
        for episode in () if result is None else result.episodes:
            for t in () if isinstance(episode, Failed) else episode.trajectories:
                if t.model_id in self._pool.model_ids and t.model_id not in self._books.absent:
                    steps = self._policies.get(t.model_id).steps
                    number = steps.ahead(t.arrays.versions, MOST_SKIPPED)
                    if number is not None and _is_whole(t):
                        self._pool.versions.saw(t.model_id, number)
                        early = True
        return early

    def _seconds(self, entry: Entry) -> float | None:
        """How long its lease has lasted; None for one that an earlier process gave."""
        if entry.lease in self._taken_over:
            self._taken_over.remove(entry.lease)
            return None
        return self._clock() - (entry.deadline - self._lease_s)

    def _ignore(self, key: str, item: m.PulledItem) -> None:
        """Count a result without a lease, once however often it comes."""
        if (key, item.task_id) in self._ignored:
            return
        self._ignored[key, item.task_id] = None
        if len(self._ignored) > REMEMBERED:
            del self._ignored[next(iter(self._ignored))]
        self._books.record(Orphan(item.lease.group_id, item.lease.owner, item.lease.attempt))

    def returned(self, key: str, leases: Sequence[LeaseId]) -> None:
        self._books.record(LoseLeases.of(key, leases))

    def lost(self, key: str) -> None:
        self._books.record(LoseLeases(key))

    def expects(self, key: str) -> bool:
        return True  # the poll is the sign of life too

    def _judge(self, key: str, result: GroupResult, seconds: float | None) -> None:
        """What a result says of the instance that it came from. A cut group says nothing."""
        failed = [e for e in result.episodes if isinstance(e, Failed)]
        if len(failed) < len(result.episodes):
            self._pool.group_succeeded(key, seconds, self._clock())
        elif any(e.reason != CUT for e in failed):
            self._fail(key, f"{failed[0].reason}: {failed[0].detail}")

    def _fail(self, key: str, reason: str) -> None:
        if self._pool.group_failed(key, reason, self._clock()):
            instance = self._pool.get(key)
            log.error("RaaS %s gets no work: %s", key, instance.reason if instance is not None else "")

    def _curate(
        self, key: str, occurrence: Occurrence, result: GroupResult | None, seconds: float | None
    ) -> tuple[list[Outcome], DropReason | None]:
        if result is None:
            return [], DropReason.REJECTED
        drop: DropReason | None
        try:
            outcomes = self._flow.curator.close(occurrence, result.check_samples(self._n_samples))
        except DataError as error:
            log.error("task %s of RaaS %s: %s; dropped as invalid", occurrence.task_id, key, error)
            # a failure like any other: it counts against the instance, and where all is so it ends the run
            lost = (Failed("invalid", str(error)),) * self._n_samples
            outcomes, drop = [], DropReason.INVALID
            result = GroupResult(group_id=result.group_id, episodes=lost, timing=result.timing)
        else:
            drop = None if outcomes else DropReason.FAILED
            self._flow.statistics.finished(result, seconds)
        self._judge(key, result, seconds)
        self._flow.trajectories.finished(occurrence, result.episodes)
        self._flow.observe(result.episodes)
        return outcomes, drop

    def _close(self, occurrence: Occurrence, lease: LeaseId, outcomes: list[Outcome], drop: DropReason | None) -> None:
        visit = visit_of([outcome.group for outcome in outcomes]) if self.cursor.watches else None
        keys = tuple(outcome.key for outcome in outcomes)
        moves = self._books.record(Finish(lease.group_id, lease.owner, keys, drop, visit, lease.attempt))
        self.cursor.visited(occurrence.prompt_id, occurrence.epoch, visit)
        group_ids = [moved.group_id for moved in moves if moved.after is State.DONE]
        for group_id, outcome in zip(group_ids, outcomes, strict=True):
            if outcome.drop is None and outcome.key.model_id in self._books.absent:
                outcome = replace(outcome, drop=DropReason.ABSENT)
            group = _numbered(outcome.group, group_id)
            if outcome.drop is None:
                self._books.keep(group)
            self._books.record(Curate(group_id, outcome.drop, group.length, group.samples))
            if outcome.drop is None:
                self._flow.serving.add(group)
            else:
                if outcome.drop is DropReason.STALE:
                    self._flow.serving.count_stale(group)
                self._flow.trajectories.dropped(group, outcome.drop)


def _is_whole(trajectory: Trajectory) -> bool:
    """Whether it keeps its own rules: what does not is no reason to wait for a version."""
    try:
        trajectory.check()
    except DataError:
        return False
    return True


def _numbered(group: Group, group_id: int) -> Group:
    return group if group.group_id == group_id else msgspec.structs.replace(group, group_id=group_id)
