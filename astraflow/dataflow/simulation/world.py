"""A world: the real Dataflow among simulated peers, what befalls them, and what may not happen."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from astraflow.core.data import Manifest
from astraflow.core.protocol import messages as m
from astraflow.dataflow.ledger import State
from astraflow.dataflow.records import Record
from astraflow.dataflow.scripted import example_rows
from astraflow.dataflow.service import AstraFlow
from astraflow.dataflow.simulation.checks import LogChecks, Names, Violation
from astraflow.dataflow.simulation.choices import Choices
from astraflow.dataflow.simulation.clock import VirtualLoop, run
from astraflow.dataflow.simulation.disk import SLOW_COMMITS_S, Disk, SimulatedStore
from astraflow.dataflow.simulation.mishaps import MISHAPS, STARTS_DATAFLOW
from astraflow.dataflow.simulation.network import Network
from astraflow.dataflow.simulation.raas import HEARTBEAT_S, SimulatedClient, SimulatedRaaS
from astraflow.dataflow.simulation.scenario import Scenario
from astraflow.dataflow.simulation.settings import settings_of
from astraflow.dataflow.simulation.sight import Sight
from astraflow.dataflow.simulation.trainer import SimulatedTrainer
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.errors import AstraFlowError, DeadlineError, InvariantError, PeerError

BREAKS_S = 0.02
"""How long a call lasts before its connection breaks; its handler knows nothing of that."""

LATE_REQUESTS_S = (0.5, 5.0)
"""How long a request lies about until it is handled, though nobody waits for it."""

CLOCKS_S = (0.0, 1e5, -1e5)
"""What a process's clock may differ by from that of the one before it."""

STOP_S = 10.0
"""Longest that an ordered stop may take."""


Backup = tuple[Disk, LogChecks, int]
"""The disk, what the checks know of it, and the length of the log."""


class World:
    """Built of a scenario and choices; `run` it once, then read what it left."""

    def __init__(self, scenario: Scenario, choices: Choices, seed: int = 0) -> None:
        """seed: of what the peers do by themselves (durations, rewards)."""
        self.scenario = scenario.check()
        self.violations: list[Violation] = []
        self.checks = LogChecks(scenario, self.wrong)
        self.log: list[Record] = []
        """Every record that was committed; the disk keeps only those after its newest snapshot."""
        self.disk = Disk(self._see)
        self.network = Network(choices, scenario.delays_s)
        self.raas: dict[str, SimulatedRaaS] = {}
        self.past_raas: list[SimulatedRaaS] = []
        self.mishaps: list[tuple[float, str]] = []
        self.finished = False
        self.ended_s = 0.0
        """When the last trainer had done its last step."""
        self.service: AstraFlow | None = None
        self.slow_disk = False
        self.restoring = False
        """An older ledger is about to be put back: at any time it is one of this run, not of what it has left."""
        self.was_slow = False
        """The disk has been slow."""
        self.published: dict[str, Manifest] = {}
        """model → what its trainer's sender has."""
        self.choices = choices
        self._chance = random.Random(seed)
        self._names = Names(self.wrong)
        self._rows, self._eval_rows = example_rows(scenario.rows), example_rows(scenario.eval_rows)
        self._store = SimulatedStore(self.disk)
        self._calls: dict[asyncio.Task[Any], None] = {}
        self._own: dict[asyncio.Task[Any], None] = {}
        self._by_url: dict[str, SimulatedRaaS] = {}
        self._broken: BaseException | None = None
        self._processes = 0
        self._heard: set[str] = set()
        """Incarnations of trainers that have reached Dataflow."""
        self.trainers = [
            SimulatedTrainer(model_id, scenario, self.ask, self.publish, lambda text: self.wrong("staleness", text))
            for model_id in scenario.models
        ]
        self._lives: dict[str, asyncio.Task[None]] = {}
        self.loop = VirtualLoop(Sight(self).look, self._commit_s)

    def _see(self, record: Record) -> None:
        if self.scenario.replayable:
            self.log.append(record)
        self.checks.see(record)

    def run(self) -> None:
        """From the beginning to the ordered stop."""
        run(self._main(), self.loop)

    def wrong(self, kind: str, text: str) -> None:
        """Note what may not be."""
        self.violations.append(Violation(kind, text, round(self.loop.time(), 3)))

    @property
    def events(self) -> int:
        """What has happened: messages, and records of the ledger."""
        return self.network.messages + self.checks.records

    async def _main(self) -> None:
        self.start_dataflow()
        for number in range(self.scenario.raas):
            self.join(f"raas-{number}")
        for trainer in self.trainers:
            self.begin_trainer(trainer)
        if self.scenario.mishaps.every_s:
            self.go(self._befall(), "mishaps")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.scenario.stop_after_s or self.scenario.longest_s):
                await self.until(lambda: all(trainer.done or trainer.lost for trainer in self.trainers))
                # their last calls
                if self._broken is None:
                    await asyncio.wait(list(self._lives.values()))
                self.finished = True
        if not self.finished and self.scenario.stop_after_s is None:
            self.wrong("standstill", f"after {self.scenario.longest_s:.0f} s: {self._where()}")
        self.ended_s = self.loop.time()
        await self._stop()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when something holds, or the world is broken; nobody tells, so it is looked at twice a second."""
        while self._broken is None and not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.5)

    def _where(self) -> str:
        steps = ", ".join(f"{t.model_id} at step {t.learnt.step}" for t in self.trainers)
        waits = (
            [] if self.service is None else [f"{w['who']} waits on {w['on']}" for w in self.service.waits.describe()]
        )
        return "; ".join([steps, *waits])

    # ---- Dataflow --------------------------------------------------------------------------------------------------

    async def ask(self, method: str, request: Any, caller: SimulatedRaaS | None = None) -> Any:
        """Call a route of the service, as it is when the message arrives."""
        await self.network.hop()
        service = self.service
        if service is None or service.stopping.is_set() or (caller is not None and caller.silent):
            raise PeerError("Dataflow cannot be reached")
        breaks = self.network.breaks()
        if breaks and (way := self.choices.pick(3)):
            if way == 2:
                self.go(self._come_late(service, method, request), "late request")
            raise PeerError("the connection broke before the request had come")
        work = self._handle(service, method, request)
        if breaks:
            await asyncio.wait([work], timeout=BREAKS_S)
            raise PeerError("the connection broke")
        try:
            # a handler outlives its client
            answer = await asyncio.shield(work)
        except asyncio.CancelledError:
            own = asyncio.current_task()
            ended = own is not None and own.cancelling()
            if work.cancelled() and self.service is not service and not ended:
                raise PeerError("Dataflow died before it answered") from None
            raise
        await self.network.hop()
        return answer

    def _handle(self, service: AstraFlow, method: str, request: Any) -> asyncio.Task[Any]:
        """Begin what a route does."""
        work = asyncio.create_task(getattr(service, method)(request))
        self._calls[work] = None
        work.add_done_callback(self._answered)
        if isinstance(request, m.RegisterRaaSRequest):
            self._watch_name(service, request.uid, work)
        if isinstance(request, m.ReadyRequest):
            self._heard.add(request.incarnation)
        return work

    async def _come_late(self, service: AstraFlow, method: str, request: Any) -> None:
        """A request whose caller has given it up lies in a queue, and is handled all the same."""
        await asyncio.sleep(LATE_REQUESTS_S[self.choices.pick(len(LATE_REQUESTS_S))])
        if self.service is not service or service.stopping.is_set():
            return
        # of a trainer that is gone and was never heard nobody can know that it is not the newest one
        if isinstance(request, m.ReadyRequest) and request.incarnation not in self._heard:
            return
        self._handle(service, method, request)

    def _watch_name(self, service: AstraFlow, uid: str, work: asyncio.Task[Any]) -> None:
        """See whether a registration takes the place of another process."""

        def owner() -> str | None:
            return next((instance.url for instance in service.pool.live if instance.uid == uid), None)

        before = owner()
        work.add_done_callback(lambda done: self._names.registered(uid, before, owner(), self._by_url))

    def _answered(self, work: asyncio.Task[Any]) -> None:
        self._calls.pop(work, None)
        if not work.cancelled() and isinstance(error := work.exception(), InvariantError):
            self.wrong("invariant", str(error))

    def start_dataflow(self, clock: int = 0) -> None:
        """Start the service on what is committed; clock: which of CLOCKS_S it begins with."""
        store = self._store = SimulatedStore(self.disk)
        self._names = Names(self.wrong)  # who registers with it first has the place
        scenario, offset = self.scenario, CLOCKS_S[clock]
        self.service = AstraFlow(
            settings_of(scenario),
            self._rows,
            {"held_out": self._eval_rows} if scenario.eval_steps else {},
            lambda url: SimulatedClient(self._by_url.get(url), self.network, lambda: self._store is store, self._tells),
            TrajectoryLog(None),
            clock=lambda: self.loop.time() + offset,
            store=store,
        )
        self.service.start()

    async def end_dataflow(self) -> bool:
        """Kill the service: what it had not committed never was. False where there is none."""
        service, self.service = self.service, None
        if service is None:
            return False
        self._store.die()
        for task in (*self._calls, *service.tasks):
            task.cancel()
        await service.links.stop()
        return True

    def backup(self) -> Backup:
        """Return a copy of the ledger as it is committed now, and of what is known of it."""
        return self.disk.copy(), self.checks.copy(), len(self.log)

    def restore(self, backup: Backup) -> None:
        """Put an older ledger in the place of the one that is there, while no service runs."""
        self.disk, self.checks, kept = backup
        del self.log[kept:]

    async def _stop(self) -> None:
        """An ordered stop in the middle of whatever goes on: every caller is answered, nothing is left behind."""
        self.finished = True
        service = self.service
        for task in [t for t in self._own if t.get_name() in ("mishaps", *STARTS_DATAFLOW)]:
            task.cancel()
        if service is not None:
            await self._stop_service(service)
        for life in (*self._lives.values(), *list(self._own)):
            life.cancel()
        for raas in self.raas.values():
            raas.die()
        # longer than any call that was under way
        await asyncio.sleep(30.0)
        left = asyncio.all_tasks() - {asyncio.current_task()} - self._own.keys() - self._calls.keys()
        if left:
            names = sorted(task.get_coro().__qualname__ for task in left)  # type: ignore[union-attr]
            self.wrong("shutdown", f"left behind: {', '.join(names)}")
        report = self.checks.auditor.report()
        for problem in report.problems:
            self.wrong("exactly once", problem)
        for trainer in self.trainers:
            self._check_learnt(trainer)

    async def _stop_service(self, service: AstraFlow) -> None:
        try:
            async with asyncio.timeout(STOP_S):
                await service.stop()
        except TimeoutError:
            self.wrong("shutdown", f"the service does not stop within {STOP_S:g} s")
        await asyncio.sleep(1.0 + len(self._calls) * 2 * max(SLOW_COMMITS_S) * self.slow_disk)
        if self._calls:
            self.wrong("shutdown", f"{len(self._calls)} callers are not answered")

    def _check_learnt(self, trainer: SimulatedTrainer) -> None:
        """What a trainer knows is what the ledger says it trained."""
        learnt = [group_id for ids in trainer.learnt.groups.values() for group_id in ids]
        if len(set(learnt)) != len(learnt):
            self.wrong("exactly once", f"{trainer.model_id} has learnt a group twice")
        ended = self.checks.auditor
        wrong = [g for g in learnt if ended.place(g) not in (State.TRAINED, State.SERVED)]
        # a trainer that was cut off may not have announced its last step
        if wrong and (trainer.done or ended.place(wrong[0]) is State.DROPPED):
            self.wrong("exactly once", f"{trainer.model_id} has learnt {wrong}, which the ledger has not as trained")

    def _tells(self, model_id: str, version: int) -> None:
        """A RaaS is about to be told of a version."""
        if (model_id, version) not in self.checks.announced:
            self.wrong("announcement", f"a RaaS is told of version {version} of {model_id}, which is not written down")

    def _commit_s(self) -> float:
        commits = SLOW_COMMITS_S if self.slow_disk else self.scenario.commits_s
        return commits[self.choices.pick(len(commits)) if len(commits) > 1 else 0]

    # ---- peers -----------------------------------------------------------------------------------------------------

    def publish(self, version: Manifest) -> None:
        """A trainer's sender has a version."""
        self.published[version.model_id] = version
        for raas in self.raas.values():
            if raas.early and not (raas.dead or raas.silent):
                raas.serve(version)

    def new_uid(self) -> str:
        """Return a name that nobody has had."""
        return f"raas-{self._processes}"

    def join(self, uid: str) -> SimulatedRaaS:
        """Start a RaaS process."""
        scenario = self.scenario
        self._processes += 1
        slow = scenario.slow_factor if self._processes % 1000 < 1000 * scenario.slow_share else 1.0
        raas = SimulatedRaaS(uid, self._processes, scenario, self._chance, slow)
        self.raas[raas.url] = self._by_url[raas.url] = raas
        self.go(self._stay_registered(raas), "heartbeat")
        return raas

    async def _stay_registered(self, raas: SimulatedRaaS) -> None:
        # they do not all speak at once
        await asyncio.sleep(self._processes % 97 / 97)
        while not (raas.dead or raas.leaving):
            pause = HEARTBEAT_S
            try:
                await self.ask("register_raas", raas.registration(), raas)
            except (PeerError, DeadlineError):
                pause = 0.5
            await asyncio.sleep(pause)
        if raas.leaving:
            raas.die()

    def begin_trainer(self, trainer: SimulatedTrainer) -> None:
        """Begin a trainer's next life, where nothing else that befell it has begun that."""
        if (before := self._lives.get(trainer.model_id)) is not None and not (before.done() or before.cancelling()):
            return
        life = self._lives[trainer.model_id] = asyncio.create_task(self._live(trainer), name="trainer")
        life.add_done_callback(self._gone)

    async def _live(self, trainer: SimulatedTrainer) -> None:
        try:
            await trainer.run()
        except AstraFlowError as error:
            if not self.finished:
                self.wrong("refused", f"{trainer.model_id}: {error.kind}: {error}")

    def go(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Have something happen beside all else, until the world ends."""
        task = asyncio.create_task(work, name=name)
        self._own[task] = None
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._own.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self.wrong("invariant", f"{task.get_name()}: {type(error).__name__}: {error}")

    def cut(self, trainer: SimulatedTrainer) -> bool:
        """End a trainer's life; False where it has none now."""
        life = self._lives[trainer.model_id]
        if life.done():
            return False
        life.cancel()
        self.published.pop(trainer.model_id, None)
        trainer.waiting_since = None
        return True

    def lives(self, trainer: SimulatedTrainer) -> bool:
        """Is it there, or has it ended well?"""
        return trainer.done or not self._lives[trainer.model_id].done()

    def end(self, raas: SimulatedRaaS) -> None:
        """Kill a RaaS process."""
        raas.die()
        self.past_raas.append(raas)
        del self.raas[raas.url]

    async def _befall(self) -> None:
        mishaps, kinds = self.scenario.mishaps, self.scenario.mishaps.kinds()
        while len(self.mishaps) < mishaps.most:
            await asyncio.sleep(mishaps.every_s)
            kind = kinds[self.choices.pick(len(kinds))]
            if kind != "none":
                self.mishaps.append((self.loop.time(), kind))
                self.go(MISHAPS[kind](self), kind)
