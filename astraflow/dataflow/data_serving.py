"""From finished groups to batches. Invariant 3 is checked here for every token that trains; batches are idempotent.

    batch    waits for `changed`; unblocked by add (a group is ready), advance (a version was announced), fail
             its deadline is the caller's; who misses it is told what is lacking, and since when

A batch is B groups of one model, oldest finished first, whose tokens are within the bound of the step that the asked
version stands for. Until the next version acknowledges it, asking again returns the same batch.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from astraflow.core.data import Batch, Group
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol import messages as m
from astraflow.dataflow.books import Books
from astraflow.dataflow.filling import Filling
from astraflow.dataflow.ledger import Acknowledge, Drop, DropReason, Serve
from astraflow.dataflow.policies import Policies, Policy
from astraflow.dataflow.staleness import LengthDeciles, VersionSteps, mask_stale, sampled_versions
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.dataflow.waiting import Pulse, Waits
from astraflow.errors import AstraFlowError, CallerError, ConflictError

LONGEST_WAIT_S = 3600.0
"""Upper bound of the timeout that a caller may ask for."""


class ReadyBuffer:
    """One model's ready groups, first in first out, found by the step of the version that decides their age."""

    def __init__(self) -> None:
        self._groups: OrderedDict[int, tuple[Group, int]] = OrderedDict()
        self._by_step: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> list[Group]:
        """In order."""
        return [group for group, _ in self._groups.values()]

    def add(self, group: Group, step: int) -> None:
        self._groups[group.group_id] = (group, step)
        self._by_step.setdefault(step, set()).add(group.group_id)

    def take(self, n: int) -> list[Group]:
        """Remove and return the first n."""
        return [self._remove(group_id) for group_id in list(islice(self._groups, n))]

    def take_older(self, step: int) -> list[Group]:
        """Remove and return the groups of steps before `step`."""
        old = [group_id for s in sorted(self._by_step) if s < step for group_id in sorted(self._by_step[s])]
        return [self._remove(group_id) for group_id in old]

    def _remove(self, group_id: int) -> Group:
        group, step = self._groups.pop(group_id)
        same = self._by_step[step]
        same.remove(group_id)
        if not same:
            del self._by_step[step]
        return group


@dataclass(frozen=True)
class Served:
    """A batch that is not acknowledged."""

    groups: tuple[Group, ...]
    reply: m.BatchReply


class DataServing:
    """Ready groups of every model, and the batch each trainer works on."""

    def __init__(
        self,
        books: Books,
        policies: Policies,
        trajectories: TrajectoryLog,
        waits: Waits,
        *,
        max_staleness: int,
        mask: bool,
        keep_steps: int = 0,
        statistics: Callable[[], dict[str, float]],
        lacking: Callable[[], str],
        spans: SpanLog | None = None,
    ) -> None:
        """mask: take old tokens out of the loss instead of dropping their group. keep_steps: so many steps can be taken
        back when a trainer is restored at an earlier one.

        statistics: what goes with a batch besides the buffer's own. lacking: why groups may be slow to come.
        """
        self.stale_deciles: Counter[int] = Counter()
        """Stale drops by length decile, 0 the shortest tenth."""
        self.masked_tokens = 0
        self.told = asyncio.Event()
        """Set once a trainer was told that the run failed."""
        self._books = books
        self._policies = policies
        self._trajectories = trajectories
        self._waits = waits
        self._max_staleness = max_staleness
        self._mask = mask
        self._keep_steps = keep_steps
        self._statistics = statistics
        self._lacking = lacking
        self._spans = spans or SpanLog(None, "dataflow")
        self._filling: dict[str, Filling] = {}
        self._ready = {policy.model_id: ReadyBuffer() for policy in policies.all}
        self._served: dict[str, Served] = {}
        self._last_stats: dict[str, dict[str, float]] = {}
        self._lengths = LengthDeciles()
        self._changed = Pulse()
        self._failure: AstraFlowError | None = None
        self._two_versions = 0
        self.waiting: set[str] = set()
        """Models whose trainer waits for a batch."""

    def ready(self, model_id: str) -> int:
        """Groups that wait for a batch."""
        return len(self._ready[model_id])

    def has_served(self, model_id: str) -> bool:
        """Does a batch wait for acknowledgement?"""
        return model_id in self._served

    def last_stats(self, model_id: str) -> dict[str, float]:
        """The statistics of the newest batch; empty before the first."""
        return self._last_stats.get(model_id, {})

    def add(self, group: Group) -> None:
        """Take a group that the ledger has as ready; one that is too old already is dropped at once."""
        policy = self._policies.get(group.model_id)
        self._lengths.observe(group_length(group))
        self._ready[group.model_id].add(group, self._deciding_step(group, policy))
        self._drop_stale(policy)
        self._fills(policy).changed(self.ready(group.model_id))
        self._changed.set()

    def advance(self, model_id: str) -> None:
        """A version was announced: what is too old for it goes, and its batch can be asked for."""
        policy = self._policies.get(model_id)
        self._drop_stale(policy)
        self._fills(policy).changed(self.ready(model_id))
        self._changed.set()

    def acknowledge(self, model_id: str, step: int) -> None:
        """The served batch was trained by `step`."""
        served = self._served.pop(model_id, None)
        self._books.record(Acknowledge(model_id, step))
        self._books.settle(model_id, step - self._keep_steps)
        for group in served.groups if served is not None else ():
            self._trajectories.trained(group, step)

    def held(self, model_id: str) -> list[Group]:
        """The groups of the batch that is not acknowledged, then the ready ones."""
        served = self._served.get(model_id)
        return [*(served.groups if served is not None else ()), *self._ready[model_id].groups]

    def reload(self, model_id: str, ready: Iterable[Group], served: Sequence[Group] = ()) -> None:
        """After a restart or a rewind, hold what the ledger has as ready and served, and nothing else."""
        policy = self._policies.get(model_id)
        self._ready[model_id] = ReadyBuffer()
        self._served.pop(model_id, None)
        for group in ready:
            self._ready[model_id].add(group, self._deciding_step(group, policy))
        if served:
            self._served[model_id] = self._batched(list(served), policy, 0.0)
        self._drop_stale(policy)
        self._changed.set()

    def fail(self, error: AstraFlowError) -> None:
        """The run is over: every trainer that asks is told why."""
        self._failure = error
        self._changed.set()

    async def batch(self, request: m.BatchRequest) -> m.BatchReply:
        """Wait for the batch that follows a version. ConflictError for an older one; DeadlineError after timeout."""
        policy = self._policies.trained(request.model_id)
        if not 0 <= request.timeout <= LONGEST_WAIT_S:
            raise CallerError(f"timeout must be 0 to {LONGEST_WAIT_S:.0f} s, got {request.timeout}")
        who = f"trainer of {request.model_id} at version {request.version}"
        started = asyncio.get_running_loop().time()
        self.waiting.add(policy.model_id)
        try:
            return await self._waits.until(
                who,
                lambda: self._waits_on(policy, request.version),
                request.timeout,
                self._batch(policy, request.version, started),
            )
        finally:
            self.waiting.discard(policy.model_id)

    async def _batch(self, policy: Policy, version: int, started: float) -> m.BatchReply:
        while True:
            if self._failure is not None:
                self.told.set()
                raise self._failure
            if version < policy.version:
                raise ConflictError(f"version {version} of '{policy.model_id}' goes back: {policy.version} is current")
            if version == policy.version:
                served = self._served.get(policy.model_id) or self._serve(policy, started)
                if served is not None:
                    return served.reply
            await self._changed.wait()

    def _serve(self, policy: Policy, started: float) -> Served | None:
        buffer = self._ready[policy.model_id]
        self._drop_stale(policy)
        if len(buffer) < policy.batch_groups:
            return None
        groups = buffer.take(policy.batch_groups)
        self._fills(policy).served(len(buffer))
        self._books.record(Serve(tuple(group.group_id for group in groups), policy.version))
        waited = asyncio.get_running_loop().time() - started
        served = self._served[policy.model_id] = self._batched(groups, policy, waited)
        self._books.batched(policy.model_id, policy.version, served.reply.batch)
        return served

    def _batched(self, groups: list[Group], policy: Policy, waited: float) -> Served:
        if self._mask:
            groups = [self._masked(group, policy) for group in groups]
        batch = Batch.of(groups).check()
        stats = {
            **self._statistics(),
            **self._buffer_stats(batch, policy),
            "timeperf/batch_wait_s": waited,
        }
        self._last_stats[policy.model_id] = stats
        return Served(tuple(groups), m.BatchReply(batch=batch, buffer_stats=stats))

    def _deciding_step(self, group: Group, policy: Policy) -> int:
        """The step whose age decides whether a group is dropped: of its oldest token, or its newest under `mask`."""
        steps = policy.steps.steps_of(sampled_versions(group))
        return int(steps.max() if self._mask else steps.min())

    def _fills(self, policy: Policy) -> Filling:
        """The model's clock; it starts when its trainer has said how large a batch is."""
        if policy.model_id not in self._filling:
            self._filling[policy.model_id] = Filling(self._spans, policy.model_id, policy.batch_groups)
        return self._filling[policy.model_id]

    def _drop_stale(self, policy: Policy) -> None:
        old = self._ready[policy.model_id].take_older(policy.step - self._max_staleness)
        if not old:
            return
        self._books.record(Drop(tuple(group.group_id for group in old), DropReason.STALE))
        for group in old:
            self.stale_deciles[self._lengths.decile(group_length(group))] += 1
            self._trajectories.dropped(group, DropReason.STALE)

    def _masked(self, group: Group, policy: Policy) -> Group:
        before = sum(t.sampled for t in group.trajectories)
        masked = mask_stale(group, policy.steps, policy.step - self._max_staleness)
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
            "buffer/groups": float(policy.batch_groups),
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
        have, need = self.ready(policy.model_id), policy.batch_groups
        return f"{need - have} more groups ({have} of {need} ready); {self._lacking()}"


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


def group_length(group: Group) -> int:
    """Sampled tokens of a group's longest trajectory."""
    return max(t.sampled for t in group.trajectories)
