"""A rollout service: tasks in, groups of episodes out, over engines whose weights change meanwhile.

    submit ──► TaskTable ──► one asyncio task a group (at most max_concurrent) ──► workflow ──► router ──► engine
                  ▲                                │ result
    pull  ◄───────┴────────────────────────────────┘   kept until acknowledged

    who waits          for what                             unblocked by
    pull               a result of its lane, or its deadline _finished (each end of a group)
    a queued group     a running place, all gates open       _fill (submit, each end, a version, resume)
    notify_version     its own version                       Updater

LAW 27: an episode that fails is data in its group; whatever a workflow does, the service goes on. Only a broken
invariant ends it: `broken` then holds the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from astraflow.core.data import decode, encode
from astraflow.core.data.trajectory import GroupResult
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol import messages as m
from astraflow.core.workflow.api.group import GroupTask
from astraflow.core.workflow.api.workflow_api import failure
from astraflow.errors import CallerError, ConflictError, DataError, InvariantError, is_foreign
from astraflow.raas.activity import Activity
from astraflow.raas.capacity import availability
from astraflow.raas.router import Router
from astraflow.raas.state import Slot, TaskTable
from astraflow.raas.updater import Updater
from astraflow.raas.workflows import RegisteredWorkflows, Registration

logger = logging.getLogger(__name__)

LONGEST_POLL = 60.0
"""Seconds; a longer timeout is cut to it."""


class RaaSService:
    """Composes tasks, workflows, engines and updates; one method a route."""

    def __init__(
        self,
        *,
        engine_id: str,
        backend: str,
        router: Router,
        updater_for: Callable[[str, Callable[[str, m.VersionState], None]], Updater],
        workflows: RegisteredWorkflows,
        max_concurrent: int,
        spans: SpanLog | None = None,
    ) -> None:
        """`updater_for(model_id, serves)` makes a model's Updater; `max_concurrent` counts groups."""
        self.engine_id = engine_id
        self.backend = backend
        self.router = router
        self.workflows = workflows
        self.max_concurrent = max_concurrent
        self.table = TaskTable()
        self.updaters = {model_id: updater_for(model_id, self._serves) for model_id in router.model_ids}
        self.broken: InvariantError | None = None
        self.stopping = asyncio.Event()
        """Set by /shutdown and by a broken invariant; the program waits for it."""
        self._activity = Activity(spans or SpanLog(None, engine_id))
        self._groups: dict[str, asyncio.Task[None]] = {}
        self._finished = asyncio.Condition()

    # ---- status ------------------------------------------------------------------------------------------------------

    def status(self) -> m.RaaSStatus:
        loads = self._loads().values()
        errors = [updater.last_error for updater in self.updaters.values() if updater.last_error]
        status = "error" if self.broken else "ready" if len(self.router.versions) == len(self.updaters) else "starting"
        return m.RaaSStatus(
            status=status,  # type: ignore[arg-type]
            engine_id=self.engine_id,
            backend=self.backend,
            models=self.router.model_ids,
            versions=self.router.versions,
            inflight=self.table.running,
            message=str(self.broken) if self.broken else "; ".join(errors),
            load={
                "running": float(sum(load.running for load in loads)),
                "queued": float(sum(load.queued for load in loads)),
                "tokens_generated": float(sum(load.tokens_generated for load in loads)),
            },
        )

    def availability(self) -> m.Availability:
        return availability(self.table, self.max_concurrent, self.router.ready, self._loads())

    def _loads(self) -> dict[str, m.EngineLoad]:
        return {model_id: engine.load() for model_id, engine in self.router.engines.items()}

    # ---- tasks -------------------------------------------------------------------------------------------------------

    async def register_workflow(self, request: m.RegisterWorkflowRequest) -> m.RegisterWorkflowResult:
        return self.workflows.register(request)

    async def submit(self, request: m.SubmitRequest) -> list[m.Accepted]:
        """Queue tasks. 404 for an unknown workflow, 409 where another version is served than was asked for."""
        self.workflows.get(request.workflow_id)
        if request.version is not None:
            served = self.router.versions.get(self.router.default_model)
            if served is None or served.number != request.version:
                raise ConflictError(
                    f"version {request.version} was asked for, {served.number if served else 'none'} is served"
                )
        accepted = self.table.submit(request.tasks, request.workflow_id, request.lane)
        self._fill()
        return accepted

    async def pull(self, request: m.PullRequest) -> list[m.PulledItem]:
        """Results that were not acknowledged, oldest first; waits up to `timeout` seconds for the first."""
        self.table.acknowledge(request.ack)
        if request.timeout > 0 and not self.table.has_results(request.lane):
            await self._a_result(request.lane, min(request.timeout, LONGEST_POLL))
        return self.table.results(request.lane, request.max_items)

    async def cancel(self, request: m.CancelRequest) -> m.CancelResult:
        """Forget tasks and end those that run; unknown ids are passed over."""
        slots = self.table.cancel(request.task_ids)
        self._end(slots)
        self._fill()
        return m.CancelResult(cancelled=[slot.task.task_id for slot in slots])

    async def reset(self, request: m.ResetRequest) -> m.ResetResult:
        """Forget all training tasks, so that evaluation has the engines to itself."""
        slots = self.table.reset("train")
        ended = self._end(slots)
        stragglers = 0
        if ended:
            _, pending = await asyncio.wait(ended, timeout=request.timeout)
            stragglers = len(pending)
        self._fill()
        return m.ResetResult(
            ready_for_eval=stragglers == 0,
            cancelled=len(slots),
            stragglers=stragglers,
            reset_epoch=self.table.epoch,
        )

    # ---- engines -----------------------------------------------------------------------------------------------------

    async def notify_version(self, request: m.RaaSNotifyVersionRequest) -> m.RaaSNotifyVersionResult:
        updater = self.updaters.get(request.model_id)
        if updater is None:
            raise CallerError(f"model '{request.model_id}' is not served here", 404)
        return await updater.notify(request)

    async def pause(self, request: m.PauseRequest) -> m.Ok:
        await self.router.pause(request.model_id, request.mode)
        return m.Ok()

    async def resume(self, request: m.PauseRequest) -> m.Ok:
        self.router.resume(request.model_id)
        self._fill()
        return m.Ok()

    # ---- the end -----------------------------------------------------------------------------------------------------

    async def shutdown(self, request: m.Empty) -> str:
        self.stopping.set()
        return "shutting down"

    async def close(self) -> None:
        """Answer who waits; end all groups, updates, engines and reward workers."""
        self.stopping.set()
        async with self._finished:
            self._finished.notify_all()
        groups = list(self._groups.values())
        for group in groups:
            group.cancel()
        await asyncio.gather(*groups, return_exceptions=True)
        for updater in self.updaters.values():
            await updater.close()
        for engine in self.router.engines.values():
            await engine.close()
        self.workflows.rewards.close()

    # ---- groups ------------------------------------------------------------------------------------------------------

    def _serves(self, model_id: str, version: m.VersionState) -> None:
        self.router.serves(model_id, version)
        self._activity.serves(version.number)
        self._fill()

    def _fill(self) -> None:
        """Start queued groups while there is room and every gate is open."""
        if not self.router.ready or self.stopping.is_set():
            return
        for slot in self.table.start(self.max_concurrent):
            task_id = slot.task.task_id
            task = asyncio.create_task(self._group(slot), name=f"group {task_id}")
            self._groups[task_id] = task
            self._activity.started(slot.lane)
            task.add_done_callback(partial(self._forget, task_id, slot.lane))

    def _forget(self, task_id: str, lane: m.Lane, done: asyncio.Task[None]) -> None:
        if self._groups.get(task_id) is done:
            del self._groups[task_id]
        self._fill()
        self._activity.ended(lane)  # after what follows it has started: no gap between them

    def _end(self, slots: list[Slot]) -> list[asyncio.Task[None]]:
        """Cancel the groups of slots that the table has forgotten."""
        tasks = [task for slot in slots if (task := self._groups.pop(slot.task.task_id, None)) is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def _group(self, slot: Slot) -> None:
        registration = self.workflows.get(slot.workflow_id)
        try:
            result = await self._run_workflow(slot, registration)
        except InvariantError as error:  # a bug of ours: the process must stop
            logger.critical("invariant broken in task %s: %s", slot.task.task_id, error)
            self.broken = error
            self.stopping.set()
            return
        except BaseException as error:  # a workflow that overrides run_group and raises: LAW 27
            if not is_foreign(error):
                raise
            n_samples = slot.task.n_samples or registration.gconfig.n_samples
            lost = (failure(error, registration.policy),) * n_samples
            result = GroupResult(group_id=slot.task.group_id, episodes=lost)
        if self.table.finish(slot, result):
            async with self._finished:
                self._finished.notify_all()

    async def _run_workflow(self, slot: Slot, registration: Registration) -> GroupResult | None:
        task = slot.task
        group = GroupTask(
            task_id=task.task_id,
            group_id=task.group_id,
            data=task.data,
            n_samples=task.n_samples or registration.gconfig.n_samples,
            model_id=self.router.default_model,
            policy=registration.policy,
        )
        workflow = registration.instance(group.n_samples, task.greedy)
        started = perf_counter()
        result = _readable(await workflow.run_group(self.router, group), registration.request.workflow_cls)
        if registration.policy.wait is not None and result is not None:
            await asyncio.sleep(registration.policy.wait.seconds(task.group_id))
            timing = {**result.timing, "group_s": perf_counter() - started}
            result = msgspec.structs.replace(result, timing=timing)
        return result

    async def _a_result(self, lane: m.Lane, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout), self._finished:
                await self._finished.wait_for(lambda: self.table.has_results(lane) or self.stopping.is_set())
        except TimeoutError:
            pass  # nothing ended meanwhile: an empty answer


def _readable(result: Any, workflow: str) -> GroupResult | None:
    """What a workflow that overrides run_group returned, if it can be sent and read; DataError otherwise."""
    if result is not None and not isinstance(result, GroupResult):
        raise DataError(f"{workflow}.run_group returned {type(result).__name__}, expected GroupResult or None")
    return None if result is None else decode(encode(result), GroupResult)
