"""From finished groups to batches. Invariant 3 is checked here for every token that trains; batches are idempotent.

    batch    waits for `changed`; unblocked by add (a group is ready), advance (a version was announced), fail
             its deadline is the caller's; who misses it is told what is lacking, and since when

A batch is B groups of one model, in the order of its buffer, whose tokens are within the bound of the step that the
asked version stands for; some of them may be replays. Until the next version acknowledges it, asking again returns the
same batch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from astraflow.core.data import Batch, Group
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol import messages as m
from astraflow.dataflow.books import Books
from astraflow.dataflow.filling import Filling
from astraflow.dataflow.ledger import Acknowledge, Drop, DropReason, Serve
from astraflow.dataflow.policies import Policies, Policy
from astraflow.dataflow.ready_buffer import ReadyBuffer
from astraflow.dataflow.replays import ReplayPool, replay_count
from astraflow.dataflow.staleness import LengthDeciles, VersionSteps, deciding_step, mask_stale
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.dataflow.waiting import Pulse, Waits
from astraflow.errors import AstraFlowError, CallerError, ConflictError

LONGEST_WAIT_S = 3600.0
"""Upper bound of the timeout that a caller may ask for."""


@dataclass(frozen=True)
class ServingRules:
    """What batches are made by."""

    max_staleness: int
    mask: bool = False
    """Take old tokens out of the loss instead of dropping their group."""
    keep_steps: int = 0
    """So many steps can be taken back when a trainer is restored at an earlier one."""
    in_samples: bool = False
    """A batch takes groups until it has train_batch_size samples, however many groups that are."""
    order: str = "fifo"
    """Of the ready groups, see ready_buffer.ORDERS."""
    max_groups: int | None = None
    """Ready groups that a model keeps; None: all that admission lets in."""
    replay_ratio: float = 0.0
    replay_policy: str = "uniform"
    seed: int = 0


@dataclass(frozen=True)
class Served:
    """A batch that is not acknowledged."""

    groups: tuple[Group, ...]
    """As they were sampled; the last of them may be replays."""
    reply: m.BatchReply


class DataServing:
    """Ready groups of every model, and the batch each trainer works on."""

    def __init__(
        self,
        books: Books,
        policies: Policies,
        trajectories: TrajectoryLog,
        waits: Waits,
        rules: ServingRules,
        *,
        statistics: Callable[[], dict[str, float]],
        lacking: Callable[[str], str],
        spans: SpanLog | None = None,
    ) -> None:
        """statistics: what goes with a batch besides the buffer's own. lacking: model → why groups are slow."""
        self.stale_deciles: Counter[int] = Counter()
        """Stale drops by length decile, 0 the shortest tenth."""
        self.masked_tokens = 0
        self.told = asyncio.Event()
        """Set once a trainer was told that the run failed."""
        self._books = books
        self._policies = policies
        self._trajectories = trajectories
        self._waits = waits
        self._rules = rules
        self._statistics = statistics
        self._lacking = lacking
        self._spans = spans or SpanLog(None, "dataflow")
        self._filling: dict[str, Filling] = {}
        self._ready = {policy.model_id: self._new_buffer() for policy in policies.all}
        self._replays = {policy.model_id: self._new_pool(policy.model_id) for policy in policies.all}
        self._served: dict[str, Served] = {}
        self._last_stats: dict[str, dict[str, float]] = {}
        self._lengths = LengthDeciles()
        self._changed = Pulse()
        self._failure: AstraFlowError | None = None
        self._two_versions = 0
        self._polls: Counter[str] = Counter()

    def ready(self, model_id: str) -> int:
        """Groups that wait for a batch."""
        return len(self._ready[model_id])

    @property
    def waiting(self) -> set[str]:
        """Models whose trainer waits for a batch: also by a call that is made again while the first one lasts."""
        return {model_id for model_id, polls in self._polls.items() if polls}

    @property
    def starved(self) -> set[str]:
        """Models whose trainer waits for a batch, and lacks groups for it."""
        policies = [self._policies.get(model_id) for model_id in self.waiting - self._served.keys()]
        return {policy.model_id for policy in policies if self._lacks(policy, self._picked(policy)) > 0}

    def has_served(self, model_id: str) -> bool:
        """Does a batch wait for acknowledgement?"""
        return model_id in self._served

    def last_stats(self, model_id: str) -> dict[str, float]:
        """The statistics of the newest batch; empty before the first."""
        return self._last_stats.get(model_id, {})

    def waits(self, group: Group) -> bool:
        """Does another group of this one's prompt wait for a batch?"""
        return self._ready[group.model_id].holds(group)

    def add(self, group: Group) -> None:
        """Take a group that the ledger has as ready; one that is too old already is dropped at once."""
        policy = self._policies.get(group.model_id)
        self._lengths.observe(group.length)
        evicted = self._ready[group.model_id].add(group, self._deciding_step(group, policy))
        self._drop(evicted, DropReason.EVICTED)
        self._drop_stale(policy)
        self._fills(policy).changed(self._available(policy))
        self._changed.set()

    def advance(self, model_id: str) -> None:
        """A version was announced: what is too old for it goes, and its batch can be asked for."""
        policy = self._policies.get(model_id)
        self._drop_stale(policy)
        self._fills(policy).changed(self._available(policy))
        self._changed.set()

    def acknowledge(self, model_id: str, step: int) -> None:
        """The served batch was trained by `step`."""
        policy = self._policies.get(model_id)
        served = self._served.pop(model_id, None)
        replays = set(self._books.ledger.replays(model_id))
        self._books.record(Acknowledge(model_id, step))
        self.settle(model_id, step - self._rules.keep_steps)
        for group in served.groups if served is not None else ():
            if group.group_id not in replays:
                self._trajectories.trained(group, step)
                self._replayable(group, policy)

    def settle(self, model_id: str, step: int) -> None:
        """What steps up to this one trained is never taken back. What may be replayed stays as long as it may."""
        if self._rules.replay_ratio > 0:
            step = min(step, self._policies.get(model_id).step - self._rules.max_staleness)
        self._books.settle(model_id, step)

    def held(self, model_id: str) -> list[Group]:
        """All that is in memory: the batch that is not acknowledged, the ready groups, those that may be replayed."""
        served = self._served.get(model_id)
        batch = served.groups if served is not None else ()
        return [*batch, *self._ready[model_id].groups, *self._replays[model_id].groups]

    def reload(
        self, model_id: str, ready: Iterable[Group], served: Sequence[Group] = (), trained: Iterable[Group] = ()
    ) -> None:
        """After a restart or a rewind, hold what the ledger has as ready, served (replays too) and trained."""
        policy = self._policies.get(model_id)
        self._ready[model_id], self._replays[model_id] = self._new_buffer(), self._new_pool(model_id)
        self._served.pop(model_id, None)
        for group in trained:
            self._replayable(group, policy)
        for group in ready:
            evicted = self._ready[model_id].add(group, self._deciding_step(group, policy))
            self._drop(evicted, DropReason.EVICTED)
        if served:
            self._served[model_id] = self._batched(served, self._made(served, policy), policy, 0.0)
        self._drop_stale(policy)
        self._changed.set()

    def count_stale(self, group: Group) -> None:
        """A group was dropped as too old: by length decile, since staleness hits long episodes harder (LAW 26)."""
        self.stale_deciles[self._lengths.decile(group.length)] += 1

    def fail(self, error: AstraFlowError) -> None:
        """The run is over: every trainer that asks is told why."""
        self._failure = error
        self._changed.set()

    async def batch(self, request: m.BatchRequest, guard: asyncio.Lock | None = None) -> m.BatchReply:
        """Wait for the batch that follows a version. ConflictError for an older one; DeadlineError after timeout.

        guard: the model's lock, held while a batch is made and not while groups are waited for.
        """
        policy = self._policies.trained(request.model_id)
        if not 0 <= request.timeout <= LONGEST_WAIT_S:
            raise CallerError(f"timeout must be 0 to {LONGEST_WAIT_S:.0f} s, got {request.timeout}")
        who = f"trainer of {request.model_id} at version {request.version}"
        started = asyncio.get_running_loop().time()
        self._polls[policy.model_id] += 1
        try:
            return await self._waits.until(
                who,
                lambda: self._waits_on(policy, request.version),
                request.timeout,
                self._batch(policy, request.version, started, guard or asyncio.Lock()),
            )
        finally:
            self._polls[policy.model_id] -= 1

    async def _batch(self, policy: Policy, version: int, started: float, guard: asyncio.Lock) -> m.BatchReply:
        while True:
            async with guard:
                if self._failure is not None:
                    self.told.set()
                    raise self._failure
                if version < policy.version:
                    raise ConflictError(
                        f"version {version} of '{policy.model_id}' goes back: {policy.version} is current"
                    )
                if version == policy.version:
                    served = self._served.get(policy.model_id) or self._serve(policy, started)
                    if served is not None:
                        return served.reply
            # the guard is let go of without an await: no change is missed
            await self._changed.wait()

    def _serve(self, policy: Policy, started: float) -> Served | None:
        buffer = self._ready[policy.model_id]
        self._drop_stale(policy)
        replays = self._picked(policy)
        if self._lacks(policy, replays) > 0:
            return None
        if self._rules.in_samples:
            groups = buffer.take_samples(self._needed(policy) - sum(group.samples for group in replays))
        else:
            groups = buffer.take(policy.batch_groups - len(replays))
        self._fills(policy).served(self._available(policy))
        kept_share = self._books.refill(policy.model_id).kept_share
        try:
            batch = self._made([*groups, *replays], policy)
        except Exception:  # nothing was promised: the ledger has them as ready, and so they are
            for group in groups:
                buffer.add(group, self._deciding_step(group, policy))
            raise
        ids = [tuple(group.group_id for group in part) for part in (groups, replays)]
        self._books.record(Serve(ids[0], policy.version, ids[1]))
        waited = asyncio.get_running_loop().time() - started
        served = self._batched([*groups, *replays], batch, policy, waited, kept_share)
        self._served[policy.model_id] = served
        self._books.batched(policy.model_id, policy.version, served.reply.batch)
        return served

    def _made(self, groups: Sequence[Group], policy: Policy) -> Batch:
        """The batch of these groups, as it trains. DataError where they give none."""
        return Batch.of([self._masked(group, policy) for group in groups] if self._rules.mask else groups).check()

    def _batched(
        self, groups: Sequence[Group], batch: Batch, policy: Policy, waited: float, kept_share: float = 1.0
    ) -> Served:
        stats = {
            **self._statistics(),
            **self._buffer_stats(batch, policy),
            "buffer/kept_share": kept_share,
            "timeperf/batch_wait_s": waited,
        }
        self._last_stats[policy.model_id] = stats
        return Served(tuple(groups), m.BatchReply(batch=batch, buffer_stats=stats))

    def _new_buffer(self) -> ReadyBuffer:
        return ReadyBuffer(self._rules.order, self._rules.max_groups)

    def _new_pool(self, model_id: str) -> ReplayPool:
        return ReplayPool(model_id, self._rules.replay_policy, self._rules.seed)

    def _replayable(self, group: Group, policy: Policy) -> None:
        """A trained group may train again, where replays are configured."""
        if self._rules.replay_ratio > 0:
            self._replays[policy.model_id].add(group, self._deciding_step(group, policy))

    def _picked(self, policy: Policy) -> list[Group]:
        """The trained groups that the next batch holds again; none are chosen before there is a version to follow."""
        places = replay_count(policy.batch_groups, self._rules.replay_ratio)
        if not places or policy.current is None:
            return []
        return self._replays[policy.model_id].pick(places, policy.version)

    def _needed(self, policy: Policy) -> int:
        """Groups, or samples, of a batch."""
        return policy.batch_groups * (policy.n_samples if self._rules.in_samples else 1)

    def _available(self, policy: Policy, replays: Sequence[Group] | None = None) -> int:
        """Groups, or samples, that are there for the next batch."""
        buffer = self._ready[policy.model_id]
        again = self._picked(policy) if replays is None else replays
        if self._rules.in_samples:
            return buffer.samples + sum(group.samples for group in again)
        return len(buffer) + len(again)

    def _lacks(self, policy: Policy, replays: Sequence[Group]) -> int:
        """What is missing for the next batch; a group that was never trained is, in any case."""
        missing = self._needed(policy) - self._available(policy, replays)
        return max(missing, 1) if not self.ready(policy.model_id) else missing

    def _deciding_step(self, group: Group, policy: Policy) -> int:
        return deciding_step(group, policy.steps, mask=self._rules.mask)

    def _fills(self, policy: Policy) -> Filling:
        """The model's clock; it starts when its trainer has said how large a batch is."""
        if policy.model_id not in self._filling:
            self._filling[policy.model_id] = Filling(self._spans, policy.model_id, self._needed(policy))
        return self._filling[policy.model_id]

    def _drop_stale(self, policy: Policy) -> None:
        oldest = policy.step - self._rules.max_staleness
        self._replays[policy.model_id].expire(oldest)
        old = self._ready[policy.model_id].take_older(oldest)
        self._drop(old, DropReason.STALE)
        for group in old:
            self.count_stale(group)

    def _drop(self, groups: Sequence[Group], reason: DropReason) -> None:
        if groups:
            self._books.record(Drop(tuple(group.group_id for group in groups), reason))
        for group in groups:
            self._trajectories.dropped(group, reason)

    def _masked(self, group: Group, policy: Policy) -> Group:
        before = sum(t.sampled for t in group.trajectories)
        masked = mask_stale(group, policy.steps, policy.step - self._rules.max_staleness)
        # a group without any token in the bound was dropped, not taken
        assert masked is not None
        self.masked_tokens += before - sum(t.sampled for t in masked.trajectories)
        return masked

    def _buffer_stats(self, batch: Batch, policy: Policy) -> dict[str, float]:
        ages = token_ages(batch, policy.steps, policy.step)
        two = trajectories_with_two_versions(batch)
        self._two_versions += two
        return {
            "buffer/ready": float(self.ready(policy.model_id)),
            "buffer/groups": float(len(np.unique(batch.group_id))),
            "buffer/replayed": float(len(self._books.ledger.replays(policy.model_id))),
            "buffer/trajectories": float(len(batch.lengths)),
            "buffer/tokens": float(len(batch.input_ids)),
            "buffer/sampled_tokens": float(len(ages)),
            "buffer/reward_mean": float(batch.rewards.mean()),
            "buffer/staleness_max": float(ages.max()),
            "buffer/staleness_mean": float(ages.mean()),
            "buffer/two_versions": float(two),
            "buffer/masked_tokens": float(self.masked_tokens),
            **{f"buffer/stale_decile_{i}": float(self.stale_deciles[i]) for i in range(10)},
            "trajectories_with_two_versions": float(self._two_versions),
        }

    def _waits_on(self, policy: Policy, version: int) -> str:
        if version > policy.version:
            return f"version {version} of '{policy.model_id}' to be announced; {policy.version} is current"
        have, need = self._available(policy), self._needed(policy)
        what = "samples" if self._rules.in_samples else "groups"
        return f"{max(1, need - have)} more {what} ({have} of {need} ready); {self._lacking(policy.model_id)}"


def token_ages(batch: Batch, steps: VersionSteps, step: int) -> np.ndarray:
    """int64, staleness of each sampled token of a batch that trains after `step`."""
    ages: np.ndarray = step - steps.steps_of(batch.versions[batch.loss_mask.astype(bool)])
    return ages


def trajectories_with_two_versions(batch: Batch) -> int:
    """Trajectories of a batch that were sampled across a weight update."""
    sampled = batch.loss_mask.astype(bool)
    starts = batch.offsets[:-1]
    highest = np.maximum.reduceat(np.where(sampled, batch.versions, -1), starts)
    lowest = np.minimum.reduceat(np.where(sampled, batch.versions, np.iinfo(np.int32).max), starts)
    return int((lowest < highest).sum())
