"""The shell around one RaaS: it performs what pool, acquisition and evaluation decide.

Per registration, four loops that never wait for another instance:

    loop      consumes                        produces                    waits for, unblocked by
    versions  pool.target                     pulls; proofs → pool        `news`: publish, end of an evaluation
    submit    outbox                          tasks at the RaaS           `outbox`: the dispatch loop
    train     results (long poll)             results → acquisition       the RaaS; it is also the sign of life
    eval      results (long poll)             results → evaluation        `news`: an evaluation task was sent

A poll is as long as a heartbeat, so an idle RaaS gives a sign of life with each. A failed call makes it suspect; after
some in a row it is dead: its leases go back at once, whoever waits for work is woken, and the loops end. A bug in what
handles a result stops the service, never one loop alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from astraflow.core.data import LeaseId
from astraflow.core.protocol import RaaSClient
from astraflow.core.protocol import messages as m
from astraflow.dataflow.orders import REFUSALS, Refusals, bodies, failed
from astraflow.dataflow.policies import Published
from astraflow.dataflow.raas_pool import Instance, RaaSPool
from astraflow.dataflow.waiting import Pulse
from astraflow.errors import AstraFlowError, CallerError, DataError, DeadlineError, PeerError

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_S = 0.2
"""Pause after the first failed call; doubles up to RETRY_MOST_S."""

RETRY_MOST_S = 5.0

ABOUT_TASKS = frozenset({400, 413})
"""Statuses of a refusal that the same tasks would meet again."""


@dataclass(frozen=True)
class Order:
    """Tasks for one instance."""

    key: str
    workflow_id: str
    tasks: tuple[m.Task, ...]
    lane: m.Lane = "train"
    version: int | None = None
    """Refuse unless this version is served."""


class Desk(Protocol):
    """Who gives out the work of a lane and takes its results."""

    def results(self, key: str, items: list[m.PulledItem]) -> list[str]:
        """Tasks ended at an instance. Returns those whose results it is to keep, and to give again."""

    def returned(self, key: str, leases: Sequence[LeaseId]) -> None:
        """Tasks did not reach, or were refused by, an instance. A lease that has ended meanwhile is passed over."""

    def lost(self, key: str) -> None:
        """An instance is gone with all it had."""

    def expects(self, key: str) -> bool:
        """Is it worth asking an instance for results?"""


class _GoneError(Exception):
    """The instance is dead; ends the link's loops."""


class RaaSLinks:
    """A link per live registration."""

    def __init__(
        self,
        pool: RaaSPool,
        desks: Mapping[m.Lane, Desk],
        workflows: Iterable[m.RegisterWorkflowRequest],
        connect: Callable[[str], RaaSClient],
        *,
        wake: asyncio.Event,
        clock: Callable[[], float],
        refused: Callable[[AstraFlowError], None],
        broken: Callable[[BaseException], None],
        durable: Callable[[], Awaitable[None]],
    ) -> None:
        """connect: url → client. refused: a RaaS cannot run our workflows. broken: a bug ended a loop.

        durable: returns when the ledger keeps what was recorded; orders and acknowledgements wait for it.
        """
        self.pool = pool
        self.desks = desks
        self.workflows = tuple(workflows)
        self.wake = wake
        self.clock = clock
        self.refused = refused
        self.durable = durable
        self.refusals = Refusals()
        self._connect = connect
        self._broken = broken
        self._links: dict[str, tuple[RaaSLink, asyncio.Task[None]]] = {}

    def open(self, instance: Instance) -> None:
        """Start to talk to a new registration."""
        link = RaaSLink(self, instance.key, self._connect(instance.url))
        task = asyncio.create_task(link.run(), name=f"link {instance.key}")
        task.add_done_callback(self._ended)
        self._links[instance.key] = (link, task)

    def close(self, key: str) -> None:
        """Stop to talk; what it had goes back."""
        _, task = self._links.pop(key, (None, None))
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        for desk in self.desks.values():
            desk.lost(key)
        self.wake.set()

    def send(self, order: Order) -> None:
        """Hand tasks to an instance's submit loop."""
        self._links[order.key][0].put(order)

    def news(self) -> None:
        """Versions changed: each link looks at its target."""
        for link, _ in self._links.values():
            link.news.set()

    def ask(self, key: str, call: Callable[[RaaSClient], Awaitable[object]]) -> asyncio.Task[None] | None:
        """Make one call whose failure does not matter (cancel, shutdown); None where the instance is gone."""
        link, _ = self._links.get(key, (None, None))
        return None if link is None else asyncio.create_task(link.ask(call))

    async def lives(self, key: str, within_s: float) -> bool:
        """Does an instance answer?"""
        link, _ = self._links.get(key, (None, None))
        return link is not None and await link.lives(within_s)

    async def stop(self) -> None:
        """End all loops and close all connections."""
        tasks = [task for _, task in self._links.values()]
        self._links.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)


class RaaSLink:
    """The loops of one registration."""

    def __init__(self, links: RaaSLinks, key: str, client: RaaSClient) -> None:
        self.news = Pulse()
        self._links = links
        self._pool = links.pool
        self._key = key
        self._client = client
        self._outbox: asyncio.Queue[Order] = asyncio.Queue()

    def put(self, order: Order) -> None:
        self._outbox.put_nowait(order)
        self.news.set()

    async def run(self) -> None:
        """Set up the workflows, then run the loops until the instance is dead or the link is closed."""
        try:
            await self._prepare()
            async with asyncio.TaskGroup() as loops:
                loops.create_task(self._versions())
                loops.create_task(self._submit())
                loops.create_task(self._pull("train"))
                loops.create_task(self._pull("eval"))
        except* _GoneError:
            self._links.close(self._key)
        finally:
            await self._client.close()

    async def ask(self, call: Callable[[RaaSClient], Awaitable[object]]) -> None:
        with contextlib.suppress(AstraFlowError):
            await call(self._client)

    async def lives(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._client.status()
        except (AstraFlowError, TimeoutError):
            return False
        return True

    async def _prepare(self) -> None:
        for request in self._links.workflows:
            try:
                await self._insist(partial(self._client.register_workflow, request))
            except CallerError as error:
                self._pool.exclude(self._key, str(error))
                self._links.refused(error)
                raise _GoneError from error
        self._pool.prepared(self._key, self._links.clock())
        self._links.wake.set()

    async def _versions(self) -> None:
        pause = RETRY_S
        while True:
            target = self._pool.target(self._key)
            if target is None:
                await self.news.wait()
            elif await self._pull_version(target):
                pause = RETRY_S
                self._links.wake.set()
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MOST_S)

    async def _pull_version(self, target: Published) -> bool:
        request = m.RaaSNotifyVersionRequest(
            model_id=target.model_id,
            version=target.version,
            sender_endpoint=target.sender_endpoint,
            manifest=target.manifest,
        )
        try:
            result = await self._insist(partial(self._client.notify_version, request))
            # what counts is what it serves now, by its own digest
            state = (await self._insist(self._client.status)).versions.get(target.model_id)
        except CallerError as error:
            log.warning("RaaS %s refused version %d of %s: %s", self._key, target.version, target.model_id, error)
            return False
        if not result.ok or state is None or not state.verified:
            # it may be the sender that is gone: the instance answers, so it is not dead, and is asked again
            log.warning("RaaS %s has not pulled version %d: %s", self._key, target.version, result.reason)
        if state is None or not state.verified:
            return False
        if self._pool.versions.get(target.model_id, state.number) is None:
            # its sender was a version ahead of the trainer's announcement, which is on its way
            self._pool.versions.saw(target.model_id, state.number)
            log.info("RaaS %s serves version %d, not announced yet", self._key, state.number)
            return False
        if not self._pool.proved(self._key, target.model_id, state.number, state.digest):
            log.error(
                "ALARM: RaaS %s serves version %d of %s with digest %s, which is not its manifest's",
                *(self._key, state.number, target.model_id, state.digest),
            )
            return False
        return state.number >= target.version

    async def _submit(self) -> None:
        while True:
            order = await self._outbox.get()
            await self._links.durable()
            for tasks in bodies(order.tasks):
                await self._submit_body(order, tasks)

    async def _submit_body(self, order: Order, tasks: list[m.Task]) -> None:
        request = m.SubmitRequest(tasks=tasks, workflow_id=order.workflow_id, lane=order.lane, version=order.version)
        refused: dict[str, str] = {}
        unsent: dict[str, str] = {}
        try:
            accepted = await self._once(self._client.submit(request))
            refused = {a.task_id: a.reason for a in accepted if not a.accepted}
        except CallerError as error:
            # about the tasks, or about the process: another version than was asked for, a workflow that it forgot
            said = refused if error.status in ABOUT_TASKS else unsent
            said |= {task.task_id: str(error) for task in tasks}
        except (PeerError, DeadlineError, DataError) as error:
            # it may have arrived: the same task_id again is one task, and a result without a lease is ignored
            unsent = {task.task_id: str(error) for task in tasks}
        if refused or unsent:
            log.warning(
                "RaaS %s did not take %d tasks: %s",
                *(self._key, len(refused) + len(unsent), next(iter((refused | unsent).values()))),
            )
            self._pool.refused(self._key, "refused work")
        self._give_back(order.lane, tasks, refused, unsent)

    def _give_back(
        self, lane: m.Lane, tasks: list[m.Task], refused: Mapping[str, str], unsent: Mapping[str, str]
    ) -> None:
        """Let others have what was not taken, but for what was refused too often: that has failed."""
        refusals, desk = self._links.refusals, self._links.desks[lane]
        hopeless = []
        for task in tasks:
            if task.task_id in refused:
                if refusals.refused(task.group_id):
                    hopeless.append(failed(task, f"refused {REFUSALS} times in a row: {refused[task.task_id]}"))
            elif task.task_id not in unsent:
                refusals.taken(task.group_id)
        ended = {item.task_id for item in hopeless}
        back = [t.lease for t in tasks if t.task_id in refused.keys() | unsent.keys() and t.task_id not in ended]
        if hopeless:
            desk.results(self._key, hopeless)
        if back:
            desk.returned(self._key, back)
        if hopeless or back:
            self._links.wake.set()

    async def _pull(self, lane: m.Lane) -> None:
        desk = self._links.desks[lane]
        ack: list[str] = []
        known: set[str] = set()
        while True:
            if not desk.expects(self._key):
                await self.news.wait()
                continue
            asked = self._links.clock()
            request = m.PullRequest(timeout=self._pool.rules.heartbeat_s, lane=lane, ack=ack)
            items = await self._insist(partial(self._client.pull, request))
            if all(item.task_id in known for item in items):
                # nothing new: who answers at once all the same is not asked again at once
                await asyncio.sleep(max(0.0, asked + min(RETRY_S, request.timeout) - self._links.clock()))
            if self._pool.doubted(self._key):
                await self._still_serves()
            kept = set(desk.results(self._key, items))
            # acknowledged with the next pull, that is after the results are in the ledger
            known = {item.task_id for item in items}
            ack = [item.task_id for item in items if item.task_id not in kept]
            self._pool.heard(self._key, self._links.clock())
            self._links.wake.set()
            await self._links.durable()

    async def _still_serves(self) -> None:
        """After a call that failed: a process that was started anew at the same address serves nothing yet."""
        served = (await self._insist(self._client.status)).versions
        lacking = self._pool.lacking(self._key, served)
        if lacking:
            reason = f"it serves no version of {', '.join(lacking)} any more: it was started anew"
            log.warning("RaaS %s: %s; its work goes back to the queue", self._key, reason)
            self._pool.exclude(self._key, reason)
            raise _GoneError(reason)

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until it succeeds or the instance is dead. CallerError is an answer: it passes."""
        pause = RETRY_S
        while True:
            try:
                return await self._once(call())
            except (PeerError, DeadlineError, DataError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MOST_S)

    async def _once(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except (PeerError, DeadlineError, DataError) as error:
            log.warning("RaaS %s: %s", self._key, error)
            if self._pool.failed(self._key, str(error)):
                log.error("RaaS %s is dead: %s; its work goes back to the queue", self._key, error)
                if isinstance(error, DataError):
                    # it answers, with what nobody can read: if all do, no new registration will help
                    self._links.refused(error)
                raise _GoneError from error
            raise
