"""Evaluation rounds: datasets scored at a pinned version.

A round holds its versions: while it runs, the RaaS that score them pull these and no newer ones, and a sample with a
token of another version is sampled again. In an exclusive round these are all RaaS and nothing new is issued; in a
concurrent one they are a share of the pool and the others go on. What was in flight before ends as it would have.
`EvalRound` is plain state; `Evaluation` is the shell that the dispatch loop and the links call.

    run      waits for `changed`, unblocked by results; its deadline is eval.timeout_s
    assign   called by the dispatch loop: tasks for instances that serve the pinned versions
    expire   called by the clock loop: tasks without a result in time go to others
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import msgspec
import numpy as np

from astraflow.core.config.ids import id_with
from astraflow.core.data import Failed, LeaseId, Trajectory
from astraflow.core.data.trajectory import EpisodeResult, GroupResult, Row
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol import messages as m
from astraflow.dataflow.eval_log import EvalLog
from astraflow.dataflow.policies import Published
from astraflow.dataflow.raas_link import Order
from astraflow.dataflow.raas_pool import Health, Instance, RaaSPool
from astraflow.dataflow.routing import share_out
from astraflow.dataflow.scores import PromptScores, score_dataset
from astraflow.dataflow.waiting import Pulse, Waits
from astraflow.errors import AstraFlowError, ConflictError, DataError

logger = logging.getLogger(__name__)

FIRST_GROUP_ID = 1 << 40
"""Evaluation's group ids start here: sample ids stay unique in the run."""


@dataclass(frozen=True)
class EvalSet:
    """A dataset and how it is scored."""

    name: str
    workflow_id: str
    rows: Sequence[Row]
    n_samples: int
    """Samples of one occurrence."""
    repeat: int = 1
    """Occurrences of a row."""
    greedy: bool = True
    """Also one greedy sample a row."""
    k: int | None = None
    """Of pass@k; None: all samples of a row."""


@dataclass(frozen=True)
class EvalTask:
    """One occurrence of a round."""

    dataset: str
    workflow_id: str
    row: int
    greedy: bool
    task: m.Task
    deadline: float = inf
    """When its lease ends."""

    def again(self) -> EvalTask:
        """The task for its next lease, under another name: a RaaS runs none twice whose result was fetched."""
        name, attempt = self.task.task_id.rpartition(".")[0], self.task.attempt + 1
        task = msgspec.structs.replace(self.task, task_id=f"{name}.{attempt}", owner="", attempt=attempt)
        return replace(self, task=task)

    def to(self, owner: str, deadline: float) -> EvalTask:
        """The task, leased."""
        return replace(self, task=msgspec.structs.replace(self.task, owner=owner), deadline=deadline)


class EvalRound:
    """Every task of a round is pending, leased or done; each is scored once."""

    def __init__(self, number: int, versions: Mapping[str, int], sets: Sequence[EvalSet], first_group_id: int) -> None:
        self.versions = dict(versions)
        self._sets = sets
        self._scores = {s.name: [PromptScores() for _ in s.rows] for s in sets}
        tasks = list(_tasks(number, sets, first_group_id))
        self.total = len(tasks)
        self.done = 0
        self.error: AstraFlowError | None = None
        """Why it cannot be finished."""
        self._pending = deque(tasks)
        self._leased: dict[str, dict[str, EvalTask]] = {}
        self.late: set[str] = set()
        """Owners that let a lease end without a result: others score the rest, where there are others."""

    @property
    def finished(self) -> bool:
        return self.done == self.total

    @property
    def pending(self) -> int:
        return len(self._pending)

    def leased(self, owner: str) -> list[str]:
        """Task ids that an owner works on."""
        return list(self._leased.get(owner, ()))

    def holds(self, owner: str, lease: LeaseId) -> str | None:
        """The id of the task that an owner works on by this lease; None where that is not, or no longer, its lease."""
        held = self._leased.get(owner, {}).values()
        return next((task.task.task_id for task in held if task.task.lease == lease), None)

    @property
    def owners(self) -> dict[str, int]:
        """owner → tasks it works on."""
        return {owner: len(held) for owner, held in self._leased.items() if held}

    def lease(self, owner: str, workflow_id: str, most: int, deadline: float = inf) -> list[EvalTask]:
        """Give out up to `most` tasks of one workflow, those at the head of the queue."""
        taken: list[EvalTask] = []
        while self._pending and len(taken) < most and self._pending[0].workflow_id == workflow_id:
            taken.append(self._pending.popleft().to(owner, deadline))
        self._leased.setdefault(owner, {}).update((t.task.task_id, t) for t in taken)
        return taken

    def samples(self, owner: str, task_id: str) -> int:
        """Episodes that a leased task was given out for."""
        return self._leased[owner][task_id].task.n_samples or 1

    def expire(self, now: float) -> dict[str, list[str]]:
        """Leases over their deadline are lost; returns owner → task ids."""
        over = {
            owner: [task_id for task_id, task in held.items() if task.deadline <= now]
            for owner, held in self._leased.items()
        }
        lost = {owner: task_ids for owner, task_ids in over.items() if task_ids}
        for owner, task_ids in lost.items():
            self.give_back(owner, task_ids)
        self.late |= lost.keys()
        return lost

    @property
    def next_workflow(self) -> str | None:
        """Workflow of the task at the head of the queue."""
        return self._pending[0].workflow_id if self._pending else None

    def give_back(self, owner: str, task_ids: Iterable[str]) -> int:
        """Leases are lost: the tasks are pending again; returns how many."""
        held = self._leased.get(owner, {})
        lost = [held.pop(task_id) for task_id in list(task_ids) if task_id in held]
        self._pending.extendleft(task.again() for task in reversed(lost))
        return len(lost)

    def finish(self, owner: str, task_id: str, result: GroupResult | None, log: EvalLog | None = None) -> bool:
        """Score a leased task; False, and nothing scored, for somebody else's or a second result."""
        task = self._leased.get(owner, {}).pop(task_id, None)
        if task is None:
            return False
        if result is not None and not self._pinned(result):
            logger.warning("evaluation task %s was sampled by another version: it is sampled again", task_id)
            self._pending.append(task.again())
            return True
        self.done += 1
        self._score(self._scores[task.dataset][task.row], task, result)
        if log is not None and result is not None:
            log.scored(task.dataset, task.row, str(task.task.data["task_id"]), task.greedy, result.episodes)
        return True

    def results(self, seed: int) -> m.EvalResults:
        """Scores of all datasets; the overall figures are means over datasets."""
        datasets = {
            s.name: score_dataset(self._scores[s.name], s.k or s.n_samples * s.repeat, seed) for s in self._sets
        }
        return m.EvalResults(
            datasets=datasets,
            overall_avg_at_k=float(np.mean([d.avg_at_k for d in datasets.values()])),
            overall_pass_at_k=float(np.mean([d.pass_at_k for d in datasets.values()])),
            version=max(self.versions.values(), default=0),
            versions=self.versions,
        )

    def _pinned(self, result: GroupResult) -> bool:
        return all(
            (turn.versions[turn.mask.astype(bool)] == self.versions.get(t.model_id, -1)).all()
            for t in _trajectories(result.episodes)
            for turn in t.turns
        )

    def _score(self, scores: PromptScores, task: EvalTask, result: GroupResult | None) -> None:
        episodes = result.episodes if result is not None else ()
        rewards = [None if isinstance(episode, Failed) else episode.outcome for episode in episodes]
        if task.greedy:
            scores.greedy = any(reward is not None and reward.correct for reward in rewards[:1])
            return
        valid = [reward for reward in rewards if reward is not None]
        scores.rewards += valid
        # a rejected occurrence, and episodes that never came back, are wrong too
        scores.invalid += max((task.task.n_samples or 1) - len(valid), 0)


def _tasks(number: int, sets: Sequence[EvalSet], group_id: int) -> Iterable[EvalTask]:
    for s in sets:
        for index, row in enumerate(s.rows):
            for greedy in [False] * s.repeat + [True] * s.greedy:
                task = m.Task(
                    task_id=id_with(f"eval-{number}/{s.name}/{row['task_id']}", f"#{group_id}.1"),
                    group_id=group_id,
                    data=row,
                    n_samples=1 if greedy else s.n_samples,
                    greedy=greedy,
                )
                yield EvalTask(s.name, s.workflow_id, index, greedy, task)
                group_id += 1


def _trajectories(episodes: Iterable[EpisodeResult]) -> Iterable[Trajectory]:
    for episode in episodes:
        if not isinstance(episode, Failed):
            yield from episode.trajectories


class Evaluation:
    """Runs rounds, one at a time. `observe` sees all finished episodes (LAW 27); `cancel` stops what a deadline cut."""

    def __init__(
        self,
        sets: Sequence[EvalSet],
        pool: RaaSPool,
        waits: Waits,
        *,
        exclusive: bool,
        timeout_s: float,
        lease_s: float,
        clock: Callable[[], float],
        share: float = 0.5,
        log: EvalLog | None = None,
        seed: int,
        wake: asyncio.Event,
        versions_changed: Callable[[], None],
        observe: Callable[[Iterable[EpisodeResult]], None],
        cancel: Callable[[str, list[str]], None],
        spans: SpanLog | None = None,
        first_group_id: int = FIRST_GROUP_ID,
    ) -> None:
        """share: of the pool's places that a concurrent round may take. log: where samples are kept.

        lease_s: until a task without a result goes to another; half of a round's time at the most.
        """
        self.exclusive = exclusive
        self.last: m.EvalResults | None = None
        self.orphans = 0
        """Results of tasks that were somebody else's by then, or nobody's."""
        self._sets = sets
        self._pool = pool
        self._waits = waits
        self._timeout_s = timeout_s
        self._lease_s = min(lease_s, timeout_s / 2)
        self._clock = clock
        self._share = share
        self._log = log or EvalLog(None, 0)
        self._pins: list[Published] = []
        self._seed = seed
        self._wake = wake
        self._versions_changed = versions_changed
        self._observe = observe
        self._cancel = cancel
        self._spans = spans or SpanLog(None, "dataflow")
        self._round: EvalRound | None = None
        self._rounds = 0
        self._next_group_id = first_group_id
        self._lock = asyncio.Lock()
        self._changed = Pulse()
        self._failure: AstraFlowError | None = None

    @property
    def running(self) -> bool:
        return self._round is not None

    @property
    def progress(self) -> dict[str, Any] | None:
        """{done, total, version, versions} of the running round; version is the highest of the policies'."""
        r = self._round
        if r is None:
            return None
        return {"done": r.done, "total": r.total, "version": max(r.versions.values()), "versions": r.versions}

    async def run(self, versions: Sequence[Published]) -> m.EvalResults | None:
        """Score these versions; None where there are no datasets. DeadlineError after the round's timeout.

        Asked again for the very versions, of all policies, that were scored last, it answers with that round's results.
        """
        if not self._sets:
            return None
        who = "evaluation of " + ", ".join(f"{p.model_id} version {p.version}" for p in versions)
        numbers = {p.model_id: p.version for p in versions}
        async with self._lock:
            if self.last is not None and self.last.versions == numbers:
                return self.last
            self._rounds += 1
            self._round = EvalRound(self._rounds, numbers, self._sets, self._next_group_id)
            self._next_group_id += self._round.total
            self._pins = list(versions)
            self._pool.versions.pin(versions, None if self.exclusive else self._chosen())
            self._versions_changed()
            self._wake.set()
            try:
                with self._spans.span("evaluate", version=max(numbers.values()), tasks=self._round.total):
                    await self._waits.until(who, self._waits_on, self._timeout_s, self._finished(self._round))
                await asyncio.to_thread(self._log.collect(numbers))
                # the bootstrap of large datasets takes a while
                self.last = await asyncio.to_thread(self._round.results, self._seed)
            finally:
                self._log.clear()
                self._close(self._round)
            return self.last

    def fail(self, error: AstraFlowError) -> None:
        """The run is over: whoever waits for a round is told."""
        self._failure = error
        self._changed.set()

    def abort(self, error: AstraFlowError) -> None:
        """The running round's versions cannot be pulled any more: whoever waits for it is told."""
        if self._round is not None:
            self._fail(self._round, error)

    def assign(self) -> list[Order]:
        """Tasks for instances that serve the pinned versions, by free room."""
        r = self._round
        if r is None:
            return []
        if not self.exclusive:
            self._choose_again(r)
        holders = self._pool.versions.holders
        able = [
            i
            for i in self._pool.serving
            if (holders is None or i.key in holders)
            and all(i.verified[model_id].version == version for model_id, version in r.versions.items())
        ]
        prompt = [i for i in able if i.key not in r.late] or able
        room = {i.key: self._room(i.available, i.max_concurrency, len(r.leased(i.key))) for i in prompt}
        deadline = self._clock() + self._lease_s
        sizes = {i.key: i.max_concurrency for i in self._pool.serving}
        orders = []
        for key, share in share_out(room, sizes, r.pending).items():
            while share > 0 and (workflow_id := r.next_workflow) is not None:
                tasks = r.lease(key, workflow_id, share, deadline)
                share -= len(tasks)
                self._pool.take(key, len(tasks))
                version = next(iter(r.versions.values())) if len(r.versions) == 1 else None
                orders.append(Order(key, workflow_id, tuple(t.task for t in tasks), "eval", version))
        return orders

    def results(self, key: str, items: list[m.PulledItem]) -> list[str]:
        """Score what came back; what is of no lease, or of an earlier round's, is counted and changes nothing."""
        r = self._round
        for item in items:
            task_id = None if r is None else r.holds(key, item.lease)
            if r is None or task_id is None:
                self.orphans += 1
                continue
            result = _checked(item, r.samples(key, task_id))
            r.finish(key, task_id, result, self._log)
            self._pool.release(key, 1)
            if result is not None:
                self._observe(result.episodes)
        if r is not None and r.finished:
            self._changed.set()
        return []

    def expire(self) -> None:
        """Give what no RaaS scored in time to others. Who took it has failed."""
        lost = {} if self._round is None else self._round.expire(self._clock())
        for key, task_ids in lost.items():
            logger.warning("RaaS %s: %d evaluation tasks are over their deadline; others get them", key, len(task_ids))
            self._pool.release(key, len(task_ids))
            self._cancel(key, task_ids)
            self._pool.group_failed(key, f"no result of an evaluation task within {self._lease_s:g} s", self._clock())

    def returned(self, key: str, leases: Sequence[LeaseId]) -> None:
        if self._round is not None:
            held = [self._round.holds(key, lease) for lease in leases]
            self._give_back(self._round, key, [task_id for task_id in held if task_id is not None])

    def lost(self, key: str) -> None:
        if self._round is not None:
            self._give_back(self._round, key, self._round.leased(key))

    def _give_back(self, r: EvalRound, key: str, task_ids: Iterable[str]) -> None:
        self._pool.release(key, r.give_back(key, task_ids))

    def expects(self, key: str) -> bool:
        return self._round is not None and bool(self._round.leased(key))

    def _room(self, available: int, max_concurrency: int, leased: int) -> int:
        if self.exclusive or len(self._pool.live) > 1:
            return available
        return min(available, max(1, int(max_concurrency * self._share)) - leased)

    def _chosen(self, late: Collection[str] = ()) -> frozenset[str]:
        """Who scores a concurrent round: of those that can still have its versions, a share of all places.

        One of several is left to training. late: who is not asked again.
        """
        live = self._pool.live
        able = [
            i
            for i in live
            if i.health not in (Health.DRAINING, Health.QUARANTINED)
            and i.key not in late
            and all(p.model_id not in i.verified or i.verified[p.model_id].version <= p.version for p in self._pins)
        ]
        places = self._share * sum(i.max_concurrency for i in live)
        chosen: set[str] = set()
        taken = 0
        # who serves the versions already first, then the largest
        for i in sorted(able, key=lambda i: (not self._serves(i), -i.max_concurrency, i.key)):
            if chosen and (taken + i.max_concurrency > places or len(chosen) + 1 == len(live)):
                break
            chosen.add(i.key)
            taken += i.max_concurrency
        return frozenset(chosen)

    def _serves(self, instance: Instance) -> bool:
        return all(instance.verified.get(p.model_id) == p for p in self._pins)

    def _choose_again(self, r: EvalRound) -> None:
        """Where nobody that was chosen gets work any more, or is in time, others score the rest, if they can."""
        holders = self._pool.versions.holders or frozenset()
        live = [i for i in self._pool.live if i.key in holders]
        if {i.key for i in live if i.health is not Health.QUARANTINED} - r.late:
            return
        chosen = self._chosen(r.late)
        if live and not chosen:
            return
        if holders and not chosen:
            self._fail(r, ConflictError("every RaaS that could score the evaluation's version is gone"))
        elif chosen:
            self._pool.versions.pin(self._pins, chosen)
            self._versions_changed()

    def _fail(self, r: EvalRound, error: AstraFlowError) -> None:
        r.error = error
        self._changed.set()

    async def _finished(self, r: EvalRound) -> None:
        while not r.finished:
            failure = self._failure or r.error
            if failure is not None:
                raise failure
            await self._changed.wait()

    def _waits_on(self) -> str:
        r = self._round
        if r is None:
            return "nothing"
        working = ", ".join(f"{owner} ({n})" for owner, n in r.owners.items()) or "no RaaS serves the pinned version"
        return f"{r.total - r.done} of {r.total} evaluation tasks; working on them: {working}"

    def _close(self, r: EvalRound) -> None:
        for owner in r.owners:
            task_ids = r.leased(owner)
            self._cancel(owner, task_ids)
            self._pool.release(owner, r.give_back(owner, task_ids))
        self._round = None
        self._pool.versions.unpin()
        self._versions_changed()
        self._wake.set()


def _checked(item: m.PulledItem, n_samples: int) -> GroupResult | None:
    try:
        return item.result.check().check_samples(n_samples) if item.result is not None else None
    except DataError as error:
        logger.error("evaluation task %s: %s; its samples count as wrong", item.task_id, error)
        return None
