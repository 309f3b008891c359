"""The Dataflow service. `AstraFlow` composes the stations and routes between them; it holds no state of its own.

    policies          who trains what, and at which version and step
    curriculum        which row is asked for next
    books             ledger, credit, room: what every occurrence's state implies
    data_acquisition  dataset → occurrences → RaaS → finished groups
    data_serving      finished groups → batches
    raas_pool, links  the live RaaS, and the loops that talk to them
    evaluation        rounds at a pinned version
    announcements     the version barrier of several models
    journal           what of this outlives the process
    recovery          going on after a death, of this process or of a trainer

Two loops of its own; all else happens inside the call that causes it:

    loop      consumes    produces                waits for, unblocked by
    dispatch  `wake`      orders for the links    a group ended; a version was announced or proved; a RaaS came, went or
                                                  recovered; an evaluation began or ended
    clock     time        deaths, lost leases     CLOCK_S
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from astraflow.core.data.trajectory import EpisodeResult, Row
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol import RaaSClient
from astraflow.core.protocol import messages as m
from astraflow.dataflow.attendance import Attendance
from astraflow.dataflow.barrier import Announcements
from astraflow.dataflow.books import Books
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.curation import Curator, FailureStreak
from astraflow.dataflow.curriculum import make_curriculum
from astraflow.dataflow.data_acquisition import DataAcquisition, Flow
from astraflow.dataflow.data_serving import DataServing, ServingRules
from astraflow.dataflow.eval_log import EvalLog
from astraflow.dataflow.evaluation import Evaluation
from astraflow.dataflow.filters import FilterRules, make_filters
from astraflow.dataflow.guards import TrainerGuards
from astraflow.dataflow.journal import Durable
from astraflow.dataflow.ledger import DropReason
from astraflow.dataflow.past import Past, Seat
from astraflow.dataflow.policies import Policies, Published
from astraflow.dataflow.raas_link import RaaSLinks
from astraflow.dataflow.raas_pool import Instance, PoolRules, RaaSPool
from astraflow.dataflow.records import Started
from astraflow.dataflow.recovery import Recovery, Returning
from astraflow.dataflow.scaling import Advisor, Sample
from astraflow.dataflow.statistics import RolloutStatistics, standing
from astraflow.dataflow.status import StatusBoard
from astraflow.dataflow.store import LedgerStore
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.dataflow.waiting import Waits
from astraflow.dataflow.workflows import eval_sets, samples_per_group, workflow_requests
from astraflow.errors import AstraFlowError, ConflictError, DeadlineError, InvariantError, WorkflowError

log = logging.getLogger(__name__)

CLOCK_S = 2.0
"""Seconds between two looks at deadlines that no event brings up."""

LEASE_FACTOR = 3.0
"""A lease lasts this many episode timeouts: queueing in the RaaS, the episode, its retries."""


class AstraFlow:
    """Composes Dataflow's stations. Call `start` inside the event loop; `stopping` is set when the run is over."""

    def __init__(
        self,
        settings: DataflowSettings,
        rows: Sequence[Row] | Mapping[str, Sequence[Row]],
        eval_rows: Mapping[str, Sequence[Row]],
        connect: Callable[[str], RaaSClient],
        trajectories: TrajectoryLog,
        *,
        clock: Callable[[], float] = time.monotonic,
        spans: SpanLog | None = None,
        store: LedgerStore | None = None,
        journal_of: Callable[[LedgerStore], Durable] = Durable,
        eval_log: EvalLog | None = None,
    ) -> None:
        """rows: of the rollout datasets by name, or of the only one; eval_rows: by name. connect: url → client.

        store: where the ledger is kept, and continued from; None: it ends with this process. eval_log: where samples of
        evaluation rounds are kept.
        """
        config = settings.dataflow
        n_samples = samples_per_group(settings)
        self.stopping = asyncio.Event()
        self.error: AstraFlowError | None = None
        self.policies = Policies(n_samples)
        by_name = rows if isinstance(rows, Mapping) else {"rollout_dataset": rows}
        sizes = {name: len(loaded) for name, loaded in by_name.items()}
        self.curriculum = make_curriculum(config, sizes, settings.experiment.seed)
        past = Past.of(store, settings, sizes)
        ledger = past.replay(self.policies, self.curriculum)
        pool = config.pool
        rules = PoolRules(pool.heartbeat_s, pool.missed_heartbeats, pool.quarantine_failures, pool.quarantine_s)
        self.pool = RaaSPool(list(n_samples), past.seats, past.registrations, rules)
        self.advisor = Advisor(pool.advice_window_s)
        self.journal = journal_of(store) if store is not None else None
        self.books = Books(ledger, self.pool, self.journal, replayable=config.ledger.replayable)
        self._returning = Returning(past.seats.values(), clock() + self.pool.rules.silent_s)
        self.waits = Waits()
        self.statistics = RolloutStatistics(clock)
        self.trajectories = trajectories
        independent = config.barrier == "independent"
        self.announcements = Announcements(config.barrier_timeout_s, self.waits, clock, independent=independent)
        self.attendance = Attendance(config.barrier_timeout_s)
        self._clock = clock
        self._first_eval_id = past.first_eval_id
        self._eval_log = eval_log
        self._spans = spans or SpanLog(None, "dataflow")
        self._wake = asyncio.Event()
        self._evaluating = asyncio.Lock()
        self._guards = TrainerGuards()
        self._announcing_for_eval = 0
        self._streak = FailureStreak(config.max_failure_streak)
        self._max_groups, self._max_refill = config.buffer.max_groups, config.buffer.max_refill
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.serving = self._make_serving(settings)
        self.acquisition = self._make_acquisition(settings, [row for loaded in by_name.values() for row in loaded])
        self.evaluation = self._make_evaluation(settings, eval_rows)
        self.links = RaaSLinks(
            self.pool,
            {"train": self.acquisition, "eval": self.evaluation},
            workflow_requests(config),
            connect,
            wake=self._wake,
            clock=clock,
            refused=self._refused,
            broken=self._broken,
            durable=self.books.journal.durable,
        )
        self.recovery = Recovery(
            self.policies,
            self.books,
            self.serving,
            self.pool,
            self.announcements.barrier,
            self.curriculum,
            config.buffer.max_staleness,
            config.buffer.replay.ratio,
            config.buffer.count == "samples",
        )
        self.board = StatusBoard(
            self.policies,
            self.pool,
            self.books,
            self.serving,
            self.evaluation,
            self.statistics,
            self.waits,
            config.buffer.max_staleness,
            clock,
            self.advisor,
        )
        self.books.journal.append(Started(past.life))
        self.recovery.restart(past.read, self._returning.keys)
        for policy in self.policies.all:
            if policy.ready is not None:
                self.attendance.expect(policy.model_id, clock())

    def _make_serving(self, settings: DataflowSettings) -> DataServing:
        def statistics() -> dict[str, float]:
            now = standing(self.books, self.pool, self.policies, self.advisor)
            return {**now, **self.curriculum.statistics(), **self.statistics.take()}

        buffer = settings.dataflow.buffer
        rules = ServingRules(
            max_staleness=buffer.max_staleness,
            mask=buffer.stale_policy == "mask",
            keep_steps=settings.dataflow.ledger.keep_steps,
            in_samples=buffer.count == "samples",
            order=buffer.order,
            max_groups=buffer.max_groups,
            replay_ratio=buffer.replay.ratio,
            replay_policy=buffer.replay.policy,
            seed=settings.experiment.seed,
        )
        return DataServing(
            self.books,
            self.policies,
            self.trajectories,
            self.waits,
            rules,
            statistics=statistics,
            lacking=lambda model_id: self.board.lacking(model_id),
            spans=self._spans,
        )

    def _make_acquisition(self, settings: DataflowSettings, rows: Sequence[Row]) -> DataAcquisition:
        buffer, seed = settings.dataflow.buffer, settings.experiment.seed
        rules = FilterRules(
            min_group_size=buffer.min_group_size,
            min_tokens=buffer.length.min_tokens,
            max_tokens=buffer.length.max_tokens,
            max_staleness=buffer.max_staleness,
            mask=buffer.stale_policy == "mask",
        )
        filters = make_filters(buffer.filter_function, self.policies, rules, self.serving.waits)
        curator = Curator(self.policies, filters, shuffle_seed=seed if buffer.shuffle_rewards else None)
        return DataAcquisition(
            rows,
            self.curriculum,
            self.books,
            self.pool,
            self.policies,
            Flow(curator, self.serving, self.statistics, self.trajectories, self._observe),
            lease_s=LEASE_FACTOR * settings.dataflow.episode_timeout_s,
            clock=self._clock,
            session_key=settings.dataflow.pool.session_key,
        )

    def _make_evaluation(self, settings: DataflowSettings, rows: Mapping[str, Sequence[Row]]) -> Evaluation:
        return Evaluation(
            eval_sets(settings, rows),
            self.pool,
            self.waits,
            exclusive=settings.dataflow.eval.mode == "exclusive",
            timeout_s=settings.dataflow.eval.timeout_s,
            lease_s=LEASE_FACTOR * settings.dataflow.episode_timeout_s,
            clock=self._clock,
            share=settings.dataflow.eval.share,
            log=self._eval_log,
            seed=settings.experiment.seed,
            wake=self._wake,
            versions_changed=lambda: self.links.news(),
            observe=self._observe,
            cancel=self._cancel,
            first_group_id=self._first_eval_id,
            spans=self._spans,
        )

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loops."""
        if self.journal is not None:
            self._spawn(self.journal.run())
        self._spawn(self._dispatch_loop())
        self._spawn(self._clock_loop())

    async def stop(self) -> None:
        """Answer who waits, end the loops, close the connections. Idempotent."""
        self.stopping.set()
        self.acquisition.paused = True
        self._end(self.error or DeadlineError("Dataflow is stopping"))
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.links.stop()
        if self.journal is not None:
            await self.journal.close()
            self.journal = None

    def fail(self, error: AstraFlowError) -> None:
        """The run cannot go on: log why, tell who waits, and ask the program to stop. The first reason stands."""
        if self.error is None:
            self.error = error
            log.error("the run stops: %s: %s", error.kind, error)
            self._end(error)
            self.stopping.set()

    def _end(self, error: AstraFlowError) -> None:
        self.serving.fail(error)
        self.evaluation.fail(error)
        self.announcements.fail(error)

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Its loops, and calls that nobody waits for."""
        return list(self._tasks)

    def _spawn(self, loop: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(loop)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)

    async def _dispatch_loop(self) -> None:
        while True:
            await self._wake.wait()
            # before the work: what happens during it is looked at in the next round
            self._wake.clear()
            self._give_up()
            scoring = self.evaluation.running or self._announcing_for_eval > 0
            self.acquisition.paused = self.stopping.is_set() or (scoring and self.evaluation.exclusive)
            # evaluation first: the trainer may be waiting for it
            for order in (*self.evaluation.assign(), *self.acquisition.assign()):
                self.links.send(order)
            for instance in self.pool.left:
                self._let_go(instance.key)
            if not (self.books.running or self.acquisition.paused):
                self.announcements.release(self.serving.starved, self.books.full)

    def _give_up(self) -> None:
        """Dynamic sampling that finds nothing ends the run, where its end is configured."""
        for policy in self.policies.all:
            refill = self.books.refill(policy.model_id)
            if self._max_refill is not None and refill.dropped.total() >= self._max_refill:
                self.fail(WorkflowError(f"no batch for {policy.model_id} (buffer.max_refill): {refill.describe()}"))

    async def _clock_loop(self) -> None:
        while True:
            await asyncio.sleep(CLOCK_S)
            for key in self.pool.missed(self._clock()):
                self._spawn(self._confirm(key))
            for key in self.pool.pardon(self._clock()):
                log.warning("RaaS %s gets work again: its quarantine is over, or nobody else can work", key)
            for key in sorted(self._returning.late(self._clock())):
                self.acquisition.lost(key)
            for model_id in self.attendance.poll(self._clock()):
                self._missing(model_id, f"silent for {self.attendance.deadline_s:g} s")
            self.acquisition.expire()
            self.evaluation.expire()
            self._measure()
            self.recovery.snapshot_if_due()
            self._wake.set()

    @contextmanager
    def _attending(self, model_id: str) -> Iterator[None]:
        """A call of a model's trainer: by that it is there."""
        if self.attendance.enter(model_id, self._clock()):
            log.warning("the trainer of %s is back", model_id)
            self.books.attended(model_id, True)
            if self.policies.get(model_id).current is None:
                self.pool.recovering(model_id)
        try:
            yield
        finally:
            self.attendance.leave(model_id, self._clock())

    def _missing(self, model_id: str, why: str) -> None:
        log.warning("the trainer of %s is absent (%s): the other policies go on without it", model_id, why)
        self.books.attended(model_id, False)
        self.announcements.excuse(model_id)
        policy = self.policies.get(model_id)
        if policy.current is None and policy.previous is not None:
            # it was restored, and has announced nothing: services go on with the version that they have
            self.pool.versions.publish(policy.previous)
            self.links.news()
        self._wake.set()

    def _measure(self) -> None:
        """Note how things stand, for the advice on the number of RaaS."""
        serving = self.pool.serving
        places = self.pool.max_concurrency
        if not places or self.policies.unannounced(self.books.absent) or self.acquisition.paused:
            return
        counters = self.books.ledger.counters
        self.advisor.see(
            Sample(
                at=self._clock(),
                waiting=len(self.serving.waiting) / len(self.policies.all),
                idle=1.0 - min(1.0, sum(i.inflight for i in serving) / places),
                ended=counters.trained + counters.dropped.total(),
                stale=counters.dropped[DropReason.STALE],
                size=len(self.pool.live),
            )
        )

    async def _confirm(self, key: str) -> None:
        """Ask an instance that missed its heartbeats whether it lives."""
        if await self.links.lives(key, self.pool.rules.heartbeat_s):
            self.pool.heard(key, self._clock())
            self._wake.set()
        elif self.pool.unanswered(key):
            log.error("RaaS %s is dead: no sign of life, and no answer; its work goes back to the queue", key)
            self.links.close(key)

    # ---- trainers --------------------------------------------------------------------------------------------------

    async def ready(self, request: m.ReadyRequest) -> m.ReadyReply:
        """A trainer is ready, or back; its credit counts from now on. Asked again, it waits for the first answer."""
        policy = self.policies.get(request.model_id)
        again = self._checked(request)
        if again:
            # what its predecessor still waits for may be what holds the lock up
            self._guards.supersede(policy.model_id)
        async with self._guards.lock(policy.model_id):
            # who had the lock before may have changed what was found
            if self._checked(request):
                await self.recovery.rewind(request)
                self._guards.supersede(policy.model_id)
                self.evaluation.abort(ConflictError(f"the trainer of {policy.model_id} was started again"))
            elif not self.policies.is_retry(request):
                self.recovery.begin(request)
            log.info("trainer of %s is ready: %d groups a step", policy.model_id, policy.batch_groups)
            with self._attending(policy.model_id):
                await self.books.journal.durable()
            return m.ReadyReply(next_version=policy.next_version)

    def _checked(self, request: m.ReadyRequest) -> bool:
        """Is it of a trainer that was started again, and not a retry? ConflictError or CallerError where it may not."""
        policy = self.policies.get(request.model_id)
        retry = self.policies.is_retry(request)
        groups = request.train_batch_size // policy.n_samples
        if self._max_groups is not None and groups > self._max_groups:
            raise ConflictError(
                f"a batch of {groups} groups never fills: dataflow.buffer.max_groups is {self._max_groups}"
            )
        if not retry:
            self.recovery.check(request)
        self.policies.check_ready(request)
        return not retry and request.recovered_step is not None

    async def batch(self, request: m.BatchRequest) -> m.BatchReply:
        model_id = self.policies.trained(request.model_id).model_id
        with self._attending(model_id):
            async with self._guards.waiting(model_id):
                reply = await self.serving.batch(request, self._guards.lock(model_id))
            await self.books.journal.durable()
        return reply

    async def save_buffer(self, request: m.SaveBufferRequest) -> m.Ok:
        """Make a consistent cut durable. A trainer that names itself, or the only one, never goes back of its step."""
        trained = [policy for policy in self.policies.all if request.model_id in (policy.model_id, None)]
        if request.model_id is not None:
            self.policies.trained(request.model_id)
        if len(trained) == 1:
            async with self._guards.lock(trained[0].model_id):
                step = trained[0].step if request.step is None else min(request.step, trained[0].step)
                self.serving.settle(trained[0].model_id, step)
                await self.books.journal.durable()
        self.recovery.snapshot()
        await self.books.journal.durable()
        return m.Ok()

    async def notify_version(self, request: m.NotifyVersionRequest) -> m.NotifyVersionReply:
        """Acknowledge the batch before it, make the version current, start its pull; evaluate where asked to."""
        with self._attending(self.policies.trained(request.model_id).model_id):
            reply = await self._announce(request)
        if request.last and self.attendance.done(request.model_id):
            self._missing(request.model_id, "it has made its last step")
            await self.books.journal.durable()
        return reply

    async def deregister_trainer(self, request: m.DeregisterTrainerRequest) -> m.Ok:
        """A trainer has died for good: others go on without it now, and not only once it has been silent for long."""
        model_id = self.policies.trained(request.model_id).model_id
        if self.attendance.done(model_id):
            self._missing(model_id, "it has ended, and is not started again")
            await self.books.journal.durable()
        return m.Ok()

    async def _announce(self, request: m.NotifyVersionRequest) -> m.NotifyVersionReply:
        policy = self.policies.get(request.model_id)
        async with self._guards.lock(request.model_id):
            begun = policy.current is not None
            self._announcing_for_eval += request.run_eval
            try:
                published = self._accept(request)
                await self.books.journal.durable()
            finally:
                self._announcing_for_eval -= request.run_eval
                self._wake.set()
            if published is not None:
                # from here on RaaS know of it: a successor of this process must, too
                self.pool.versions.publish(published)
                self.announcements.published()
                self.links.news()
                self._spawn(asyncio.to_thread(self.trajectories.collect(request.model_id)))
        # no other await up to the evaluation: an exclusive one begins before anything new is issued
        async with self._guards.waiting(request.model_id):
            if published is not None and begun:
                # a first or a restored version follows on none: it waits for nobody
                await self.announcements.wait(request.model_id, request.version)
            results = await self._evaluate(request) if request.run_eval else None
        await self.books.journal.durable()
        return m.NotifyVersionReply(eval_results=results)

    def _accept(self, request: m.NotifyVersionRequest) -> Published | None:
        """Make a version current, with all that the ledger says of it; None where it is current already."""
        before = self.policies.get(request.model_id).step
        served = self.serving.has_served(request.model_id)
        published = self.policies.announce(request, served=served)
        if published is None:
            return None
        self.recovery.announced(published)
        if published.step > before:
            self.serving.acknowledge(request.model_id, published.step)
            self.books.admissions[request.model_id].advance(published.step)
        self.serving.advance(request.model_id)
        return published

    async def _evaluate(self, request: m.NotifyVersionRequest) -> m.EvalResults | None:
        """Score the versions as they are; anew where the trainer of another policy is started again meanwhile."""
        policy = self.policies.get(request.model_id)
        # which versions there are is looked at when it is this one's turn
        async with self._evaluating:
            while True:
                await self._all_started(request)
                published = [self.pool.versions.newest(p.model_id) or p.previous for p in self.policies.all]
                versions = [version for version in published if version is not None]
                try:
                    results = await self.evaluation.run(versions)
                except ConflictError:
                    if policy.version != request.version:
                        raise
                    continue
                if results is None:
                    return None
                return msgspec.structs.replace(results, version=results.versions.get(policy.model_id, results.version))

    async def _all_started(self, request: m.NotifyVersionRequest) -> None:
        """Wait for every policy's first version: an evaluation holds the versions of all whose trainers are there."""

        def missing() -> str:
            there = [p.model_id for p in self.policies.all if p.model_id not in self.books.absent]
            return ", ".join(model_id for model_id in there if self.pool.versions.newest(model_id) is None)

        async def started() -> None:
            while missing():
                await self.announcements.changed()

        await self.waits.until(
            f"evaluation of {request.model_id} version {request.version}",
            lambda: f"the first version of {missing()}",
            self.attendance.deadline_s,
            started(),
        )

    # ---- RaaS ------------------------------------------------------------------------------------------------------

    async def register_raas(self, request: m.RegisterRaaSRequest) -> m.RegisterRaaSReply:
        """A RaaS joins, gives a sign of life, or comes back anew; then what it had before goes to others at once."""
        if self.pool.has_left(request, self._clock()):
            return self._reply(request.uid, "it was deregistered: only another process, of another incarnation, joins")
        successor = self.pool.successor(request, self._clock())
        if successor is not None:
            return self._reply(
                request.uid, f"uid '{request.uid}' is that of a RaaS at {successor.url}: each needs a uid of its own"
            )
        registration = self.pool.register(request, self._clock())
        if registration.replaced is not None:
            log.warning("RaaS %s was started anew", request.uid)
            self.links.close(registration.replaced.key)
        if registration.new:
            self._join(registration.instance)
        self._wake.set()
        return self._reply(request.uid)

    def _reply(self, uid: str, reason: str = "") -> m.RegisterRaaSReply:
        heartbeat_s = self.pool.rules.heartbeat_s
        return m.RegisterRaaSReply(uid=uid, pool_size=len(self.pool.live), heartbeat_s=heartbeat_s, reason=reason)

    def _join(self, instance: Instance) -> None:
        log.info("RaaS %s joins at %s", instance.key, instance.url)
        self.books.journal.append(Seat(instance.uid, instance.incarnation, instance.key).written())
        self.links.open(instance)
        for key in sorted(self._returning.joined(instance.uid, instance.key)):
            self.acquisition.lost(key)
        order = self.acquisition.again(instance.key)
        if order is not None:
            self.links.send(order)

    async def deregister_raas(self, request: m.DeregisterRaaSRequest) -> m.RegisterRaaSReply:
        """A RaaS leaves for good: after its leases have ended, or at once. An unknown uid is fine."""
        instance = self.pool.drain(request.uid, self._clock(), request.incarnation)
        if instance is not None:
            instance.shutdown = request.shutdown
            if not request.drain:
                self._let_go(instance.key)
            self._wake.set()
        return self._reply(request.uid)

    def _let_go(self, key: str) -> None:
        instance = self.pool.get(key)
        for desk in self.links.desks.values():
            desk.lost(key)
        if instance is not None and instance.shutdown:
            asking = self._ask(key, RaaSClient.shutdown)
            if asking is not None:
                asking.add_done_callback(lambda _: self.links.close(key))
        else:
            self.links.close(key)
        self.pool.remove(key)

    def _cancel(self, key: str, task_ids: list[str]) -> None:
        self._ask(key, lambda client: client.cancel(task_ids))

    def _ask(self, key: str, call: Callable[[RaaSClient], Awaitable[object]]) -> asyncio.Task[None] | None:
        asking = self.links.ask(key, call)
        if asking is not None:
            self._tasks[asking] = None  # a task that nobody holds may be collected before it has run
            asking.add_done_callback(lambda done: self._tasks.pop(done, None))
        return asking

    def _refused(self, error: AstraFlowError) -> None:
        # one odd instance among others is left out; a run that no instance can serve is over
        if not self.pool.live:
            self.fail(WorkflowError(f"no RaaS can run this run's workflows: {error}"))

    def _broken(self, error: BaseException) -> None:
        log.error("a loop of Dataflow ended", exc_info=error)
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.fail(error if isinstance(error, AstraFlowError) else InvariantError(f"{type(error).__name__}: {error}"))

    def _observe(self, episodes: Iterable[EpisodeResult]) -> None:
        error = self._streak.observe(episodes)
        if error is not None:
            self.fail(error)

    # ---- what it tells ---------------------------------------------------------------------------------------------

    def raas_pool(self) -> dict[str, Any]:
        return self.board.raas_pool()

    def status(self) -> dict[str, Any]:
        error = None if self.error is None else str(self.error)
        return self.board.status(stopping=self.stopping.is_set(), error=error)

    def metrics(self) -> str:
        return self.board.metrics()
