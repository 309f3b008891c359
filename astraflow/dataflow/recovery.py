"""Going on after a death: of this process (`restart`), or of a trainer (`rewind`).

Restart. The log is read back: ledger, policies and their versions are what they were at the last commit. A RaaS that
lives on keeps its leases, and is asked for them again, since the order may not have reached it (a task asked for twice
is one); those of others are lost. The curriculum stands where the issued occurrences and the results in the log put it
(its orders and coins are functions of seed, pass and prompt: there is no other random state). A batch that was served
and not acknowledged is served again, the same.

Rewind. A trainer restored after step s continues a lineage in which later steps never happened. What they trained, and
what it was served, is ready again, unless a token of it was sampled by a version that they made: then its occurrence is
queued again. So each occurrence is trained once in the lineage that survives (invariant 4), by tokens of that lineage
only (invariant 5), and a recovery loses none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from astraflow.core.data import Group, encode
from astraflow.core.protocol.messages import ReadyRequest
from astraflow.dataflow.barrier import VersionBarrier
from astraflow.dataflow.books import Books
from astraflow.dataflow.curriculum import Curriculum
from astraflow.dataflow.data_serving import DataServing
from astraflow.dataflow.ledger import Acknowledge, Finish, Issue, Ledger, LoseLeases, Requeue, Rewind, State
from astraflow.dataflow.policies import Policies, Policy, Published
from astraflow.dataflow.raas_pool import RaaSPool
from astraflow.dataflow.records import (
    Announced,
    Arrived,
    Attended,
    Batched,
    Loaded,
    Snapshot,
    SnapshotTaken,
    Started,
    TrainerReady,
    Var,
)
from astraflow.dataflow.replays import replay_count
from astraflow.dataflow.staleness import Admission
from astraflow.errors import ConflictError, DataError

log = logging.getLogger(__name__)

SNAPSHOT_EVERY = 100_000
"""Events after which a snapshot is taken, so that a restart reads few of them back (a second's worth)."""


def published_name(model_id: str) -> str:
    """Name of the variable that holds a model's current version with its manifest."""
    return f"published/{model_id}"


def replay(loaded: Loaded, policies: Policies, published: Mapping[str, Published], curriculum: Curriculum) -> Ledger:
    """Put policies and curriculum back as they were and return the ledger. `published`: versions, with manifests.

    InvariantError where the log contradicts itself.
    """
    ledger = Ledger()
    if loaded.snapshot is not None:
        ledger = Ledger.restored(loaded.snapshot.ledger)
        for snapshot in loaded.snapshot.policies:
            policies.restore(snapshot, published.get(snapshot.model_id))
        curriculum.restore(loaded.snapshot.curriculum)
    for record in loaded.records:
        match record:
            case TrainerReady():
                policies.replay_ready(record.request, record.seen)
            case Announced():
                policies.replay_announced(record.model_id, record.version, record.step, published.get(record.model_id))
            case Started() | Arrived() | Attended() | Batched():
                pass  # for a replay
            case Issue():
                curriculum.issued(record.prompt_id, record.epoch)
                ledger.handle(record)
            case Finish():
                entry = ledger.get(record.group_id)
                if ledger.handle(record) and entry is not None:
                    curriculum.visited(entry.prompt_id, entry.epoch, record.visit)
            case _:
                ledger.handle(record)
    return ledger


def usable(group: Group | None, policy: Policy) -> bool:
    """May a finished group train in this lineage?"""
    return group is not None and not policy.steps.abandoned(group.versions)


class Returning:
    """RaaS that an earlier Dataflow knew, by their keys, until they are back or given up."""

    def __init__(self, keys: Iterable[str], by: float) -> None:
        """by: time after which nobody is waited for."""
        self.keys = set(keys)
        self._by = by

    def joined(self, uid: str, key: str) -> set[str]:
        """One registered: returns the key of another process of its name, which is gone."""
        gone = {other for other in self.keys if other.rpartition("#")[0] == uid} - {key}
        self.keys -= {key, *gone}
        return gone

    def late(self, now: float) -> set[str]:
        """Those that did not come back in time."""
        gone, self.keys = (self.keys, set()) if now > self._by else (set(), self.keys)
        return gone


class Recovery:
    """Brings the stations back to a state that the ledger allows."""

    def __init__(
        self,
        policies: Policies,
        books: Books,
        serving: DataServing,
        pool: RaaSPool,
        barrier: VersionBarrier,
        curriculum: Curriculum,
        max_staleness: int,
        replay_ratio: float = 0.0,
        in_samples: bool = False,
    ) -> None:
        self._policies = policies
        self._books = books
        self._serving = serving
        self._pool = pool
        self._barrier = barrier
        self._curriculum = curriculum
        self._max_staleness = max_staleness
        self._replay_ratio = replay_ratio
        self._in_samples = in_samples
        self._snapshot_at = 0

    def restart(self, read: Callable[[int], Group | None], returning: Collection[str] = ()) -> None:
        """Continue from the replayed ledger and policies.

        read: trajectories that were kept, by group id. returning: owners that may come back, and keep their leases.
        """
        ledger = self._books.ledger
        for owner in sorted(set(ledger.owners).difference(returning)):
            self._books.record(LoseLeases(owner))
        for policy in self._policies.all:
            if policy.ready is not None:
                self._restart_policy(policy, read)
        ledger.validate()
        if ledger.counters.asked:
            counters = ledger.counters
            log.info(
                "the ledger goes on: %d issued, %d trained, %d in flight",
                *(counters.issued, counters.trained, counters.in_flight),
            )

    def check(self, request: ReadyRequest) -> None:
        """ConflictError where a trainer is back at a step that cannot be gone back to: it would train twice."""
        step, settled = request.recovered_step, self._books.ledger.settled(request.model_id)
        if step is not None and 0 <= step < settled:
            raise ConflictError(
                f"the trainer of '{request.model_id}' is back at step {step}, but what the steps up to {settled} "
                f"trained was let go and would be trained twice; restore its state of step {settled} or later in "
                f"recover/{request.model_id} of the run directory, or begin in a new run directory"
            )

    async def rewind(self, request: ReadyRequest) -> None:
        """A trainer is back at `recovered_step`: what it trained since is to be trained again."""
        policy = self._policies.get(request.model_id)
        step = request.recovered_step or 0
        ledger = self._books.ledger
        taken_back = [*ledger.trained(policy.model_id, after=step), *ledger.served(policy.model_id)]
        replayable = self._replayable(policy, step)
        kept = await self._books.journal.read([*taken_back, *replayable])
        # nothing was changed before; from here to the end without an await: nobody sees half of it
        held = {group.group_id: group for group in self._serving.held(policy.model_id)}
        seen = self._pool.versions.seen(policy.model_id)
        self._policies.replay_ready(request, seen)
        self._books.journal.append(TrainerReady(request, seen))
        moved = self._books.record(Rewind(policy.model_id, step))
        self._pool.recovering(policy.model_id)
        ready = set(ledger.groups(State.READY, policy.model_id))
        order = [*(move.group_id for move in moved), *(group_id for group_id in held if group_id in ready)]
        self._hold(policy, order, {**held, **kept}, replayable=replayable)
        self._admit(policy)
        if moved:
            log.warning(
                "trainer of %s is back at step %d: %d groups of later steps are trained again",
                *(policy.model_id, step, len(moved)),
            )

    def begin(self, request: ReadyRequest) -> None:
        """A fresh trainer is ready: its credit counts from now on."""
        self._policies.replay_ready(request)
        self._books.journal.append(TrainerReady(request))
        self._admit(self._policies.get(request.model_id))

    def snapshot(self) -> None:
        """Note the whole state, so that a restart need not read what was before."""
        state = Snapshot(self._books.ledger.snapshot(), self._policies.snapshot(), self._curriculum.snapshot())
        self._books.journal.append(SnapshotTaken(encode(state)))
        self._snapshot_at = self._books.recorded

    def snapshot_if_due(self) -> None:
        if self._books.recorded - self._snapshot_at >= SNAPSHOT_EVERY:
            self.snapshot()

    def announced(self, published: Published) -> None:
        """Write down a version that became current."""
        self._books.journal.append(
            Announced(published.model_id, published.version, published.step, published.manifest.digest),
            Var(published_name(published.model_id), encode(published)),
        )

    def _restart_policy(self, policy: Policy, read: Callable[[int], Group | None]) -> None:
        ledger = self._books.ledger
        if policy.current is None and policy.ready is not None and policy.ready.recovered_step is not None:
            # its trainer was back, and what follows from that perhaps not written down
            self._books.record(Rewind(policy.model_id, policy.step))
        if any(entry.version != policy.version for g in ledger.served(policy.model_id) if (entry := ledger.get(g))):
            # the version after it was written down, and no more
            self._books.record(Acknowledge(policy.model_id, policy.step))
        served = [*ledger.served(policy.model_id), *ledger.replays(policy.model_id)]
        ready, replayable = ledger.groups(State.READY, policy.model_id), self._replayable(policy, policy.step)
        wanted = dict.fromkeys((*served, *ready, *replayable))
        groups = {group_id: group for group_id in wanted if (group := read(group_id)) is not None}
        lost = [group_id for group_id in served if group_id not in groups]
        if lost:
            raise DataError(
                f"groups {lost} were served to the trainer of {policy.model_id}; their trajectories are gone"
            )
        if policy.current is not None:
            self._pool.versions.publish(policy.current)
        # finished, but its curation was not written down any more
        self._again(ledger.groups(State.DONE, policy.model_id))
        self._hold(policy, ready, groups, served, replayable)
        self._admit(policy)

    def _replayable(self, policy: Policy, step: int) -> list[int]:
        """What may be trained again after a step, in the order in which it was trained."""
        if self._replay_ratio == 0:
            return []
        return self._books.ledger.trained(policy.model_id, after=step - self._max_staleness, up_to=step)

    def _hold(
        self,
        policy: Policy,
        order: Iterable[int],
        groups: Mapping[int, Group],
        served: Iterable[int] = (),
        replayable: Iterable[int] = (),
    ) -> None:
        """Serve from these ready groups, in order; those that cannot be used run again."""
        ready = {group_id: groups.get(group_id) for group_id in order}
        again = [group_id for group_id, group in ready.items() if not usable(group, policy)]
        self._again(again)
        good = [group for group_id, group in ready.items() if group is not None and group_id not in set(again)]
        trained = [group for group_id in replayable if usable(group := groups.get(group_id), policy) and group]
        self._serving.reload(policy.model_id, good, [groups[group_id] for group_id in served], trained)

    def _again(self, group_ids: list[int]) -> None:
        if group_ids:
            self._books.record(Requeue(tuple(group_ids)))

    def _admit(self, policy: Policy) -> None:
        ledger = self._books.ledger
        n = policy.n_samples if self._in_samples else 1
        running = ledger.counters.states[State.QUEUED] + ledger.counters.states[State.LEASED]
        if self._in_samples:
            held = ledger.held_samples(policy.model_id, n)
        else:
            held = sum(len(ledger.groups(s, policy.model_id)) for s in (State.DONE, State.READY, State.SERVED))
            held += len(ledger.replays(policy.model_id))
        replays = replay_count(policy.batch_groups, self._replay_ratio)
        admission = Admission(
            policy.batch_groups * n,
            self._max_staleness,
            policy.step,
            held,
            running * n,
            replays * n,
            n if self._in_samples else 0,
        )
        self._books.admit(policy.model_id, admission)
        self._barrier.join(policy.model_id)
