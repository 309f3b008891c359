"""A simulated rollout service. Its groups are run by the real workflow code, its samples only take time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from astraflow.core.data import GenerationHyperparameters, Manifest, StopReason, Trajectory, Turn, Value
from astraflow.core.data.trajectory import GroupResult
from astraflow.core.protocol import RaaSClient
from astraflow.core.protocol import messages as m
from astraflow.core.workflow.api.group import EpisodeTask, GroupPolicy, GroupTask
from astraflow.core.workflow.api.workflow_api import EpisodeWorkflow
from astraflow.dataflow.simulation.network import Network
from astraflow.dataflow.simulation.scenario import Scenario
from astraflow.errors import EngineError, PeerError

T = TypeVar("T")

HEARTBEAT_S = 5.0
PROMPT = 2
MOST_TOKENS = 48
"""Simulated tokens of a sample: they stand for its length."""


class SimulatedRaaS:
    """One process. `die` ends it; a successor is another object with the same uid."""

    def __init__(self, uid: str, number: int, scenario: Scenario, chance: random.Random, slow: float) -> None:
        """number: of all RaaS processes so far; slow: times slower than usual."""
        self.uid = uid
        self.url = f"http://{uid}-{number}"
        self.dead = False
        self.silent = False
        self.mute = False
        """Accepts work, and forgets it."""
        self.late = False
        """Keeps to itself what it has done."""
        self.early = False
        """Serves what a sender has, before it is announced."""
        self.leaving = False
        self.slow = slow
        self.concurrency = scenario.concurrency
        self.versions: dict[str, m.VersionState] = {}
        self.running: dict[str, tuple[float, int, asyncio.Task[None]]] = {}
        """task_id → since when, group, its task."""
        self.samples = 0
        """That ended here."""
        self.busy_s = 0.0
        """Over all places: seconds that groups ran."""
        self._born = _now()
        self._died: float | None = None
        self._scenario = scenario
        self._chance = chance
        self._incarnation = f"process {number}"
        self._policy = GroupPolicy()
        self._workflow = SimulatedWorkflow()
        self._results: dict[m.Lane, dict[str, m.PulledItem]] = {"train": {}, "eval": {}}
        self._sent: dict[m.Lane, list[str]] = {"train": [], "eval": []}
        self._known: set[str] = set()
        self._news: asyncio.Future[None] | None = None

    def registration(self) -> m.RegisterRaaSRequest:
        capabilities = {
            "max_concurrency": self.concurrency,
            "models": self._scenario.models,
            "incarnation": self._incarnation,
        }
        return m.RegisterRaaSRequest(uid=self.uid, raas_url=self.url, capabilities=capabilities)

    def farewell(self) -> m.DeregisterRaaSRequest:
        return m.DeregisterRaaSRequest(uid=self.uid, drain=True, incarnation=self._incarnation)

    def die(self) -> None:
        """Everything it had is gone."""
        if self.dead:
            return
        self.dead, self._died = True, _now()
        for _, _, task in self.running.values():
            task.cancel()
        self.running.clear()
        self._ring()

    @property
    def well(self) -> bool:
        """Is nothing the matter with it?"""
        return not (self.dead or self.silent or self.mute or self.late or self.leaving)

    @property
    def taken(self) -> int:
        """Groups that it runs, or has done and not returned."""
        return len(self.running) + len(self._results["train"])

    def alive_s(self, until: float) -> float:
        """How long it lived, up to a time."""
        return max(0.0, min(until, self._died if self._died is not None else until) - self._born)

    # ---- its routes ------------------------------------------------------------------------------------------------

    async def register_workflow(self, request: m.RegisterWorkflowRequest) -> m.RegisterWorkflowResult:
        self._policy = msgspec.convert(request.group_policy, GroupPolicy)
        return m.RegisterWorkflowResult(workflow_id=request.workflow_id, registered=True, total_workflows=1)

    async def submit(self, request: m.SubmitRequest) -> list[m.Accepted]:
        for task in request.tasks:
            if task.task_id not in self._known:
                self._known.add(task.task_id)
                if self.mute:
                    continue
                work = asyncio.create_task(self._run(request.lane, task))
                self.running[task.task_id] = (_now(), task.group_id, work)
        return [m.Accepted(task_id=task.task_id, accepted=True) for task in request.tasks]

    async def pull(self, request: m.PullRequest) -> list[m.PulledItem]:
        results, sent = self._results[request.lane], self._sent[request.lane]
        if self.late:
            await asyncio.sleep(request.timeout)
            return []
        for task_id in request.ack:
            results.pop(task_id, None)
        sent[:] = [task_id for task_id in sent if task_id in results]
        if sent:  # not acknowledged: the same again
            return [results[task_id] for task_id in sent]
        if not results:
            await self._any_news(request.timeout)
        sent += list(results)[: request.max_items]
        return [results[task_id] for task_id in sent]

    async def cancel(self, request: m.CancelRequest) -> m.CancelResult:
        known = [task_id for task_id in request.task_ids if task_id in self.running]
        for task_id in known:
            self.running.pop(task_id)[2].cancel()
        return m.CancelResult(cancelled=known)

    async def notify_version(self, request: m.RaaSNotifyVersionRequest) -> m.RaaSNotifyVersionResult:
        served = self.versions.get(request.model_id)
        if served is None or request.version > served.number:
            await asyncio.sleep(self._scenario.pull_s * self.slow)
        pulled = request.manifest is not None and self.serve(request.manifest)
        return m.RaaSNotifyVersionResult(ok=True, model_id=request.model_id, version=request.version, pulled=pulled)

    async def status(self) -> m.RaaSStatus:
        return m.RaaSStatus(
            status="ready",
            engine_id=self.uid,
            backend="simulated",
            models=self._scenario.models,
            versions=dict(self.versions),
            inflight=len(self.running),
        )

    def serve(self, version: Manifest) -> bool:
        """Swap to a version; False where it is not newer than what is served."""
        served = self.versions.get(version.model_id)
        newer = served is None or version.version > served.number
        if newer:
            state = m.VersionState(number=version.version, digest=version.digest, verified=True)
            self.versions[version.model_id] = state
        return newer

    # ---- its work --------------------------------------------------------------------------------------------------

    async def sample(self, task: EpisodeTask) -> list[Trajectory]:
        """One episode: it takes time, and weights may be swapped meanwhile."""
        scenario, chance = self._scenario, self._chance
        if scenario.stuck_share and chance.random() < scenario.stuck_share:
            await asyncio.get_running_loop().create_future()
        if scenario.fail_share and chance.random() < scenario.fail_share:
            raise EngineError("simulated")
        first = {model_id: state.number for model_id, state in self.versions.items()}
        seconds = scenario.latency.seconds(chance)
        await asyncio.sleep(seconds * self.slow)
        tokens = max(1, min(MOST_TOKENS, round(4 * seconds)))
        self.samples += 1
        return [
            Trajectory(
                task_id=task.task_id,
                group_id=task.group_id,
                sample_id=task.sample_id,
                model_id=model_id,
                turns=(_turn(first[model_id], self.versions[model_id].number, tokens),),
                reward=Value(float(chance.random() < scenario.solved_share)),
                stop=StopReason.STOP,
            )
            for model_id in scenario.models
        ]

    @asynccontextmanager
    async def managed_session(self) -> AsyncIterator[SimulatedRaaS]:
        yield self

    async def _run(self, lane: m.Lane, task: m.Task) -> None:
        group = GroupTask(
            task_id=task.task_id,
            group_id=task.group_id,
            data=task.data,
            n_samples=task.n_samples or self._scenario.n_samples,
            policy=self._policy,
        )
        result: GroupResult = await self._workflow.run_group(self, group)  # type: ignore[arg-type]
        since, _, _ = self.running.pop(task.task_id)
        self.busy_s += _now() - since
        self._results[lane][task.task_id] = m.PulledItem(task_id=task.task_id, lease=task.lease, result=result)
        self._ring()

    async def _any_news(self, timeout: float) -> None:
        if self._news is None:
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._news], timeout=timeout)

    def _ring(self) -> None:
        if self._news is not None:
            self._news.set_result(None)
            self._news = None


class SimulatedWorkflow(EpisodeWorkflow):
    """Asks the simulated RaaS, which is its engine, for each sample."""

    def __init__(self) -> None:
        super().__init__(GenerationHyperparameters())

    async def run(self, engine: Any, task: EpisodeTask) -> list[Trajectory]:
        trajectories: list[Trajectory] = await engine.sample(task)
        return trajectories


class SimulatedClient(RaaSClient):
    """Dataflow's end of the line to a RaaS; `alive` says whether that Dataflow still lives."""

    def __init__(
        self,
        raas: SimulatedRaaS | None,
        network: Network,
        alive: Callable[[], bool],
        tells: Callable[[str, int], None],
    ) -> None:
        """tells: is told the model and the version that the RaaS is about to be told of."""
        self._raas = raas
        self._network = network
        self._alive = alive
        self._tells = tells

    async def _ask(self, work: Callable[[SimulatedRaaS], Awaitable[T]]) -> T:
        if not self._alive():
            raise PeerError("the caller is dead")
        return await self._network.call(self._raas, work)

    async def register_workflow(self, request: m.RegisterWorkflowRequest) -> m.RegisterWorkflowResult:
        return await self._ask(lambda raas: raas.register_workflow(request))

    async def submit(self, request: m.SubmitRequest) -> list[m.Accepted]:
        return await self._ask(lambda raas: raas.submit(request))

    async def pull(self, request: m.PullRequest) -> list[m.PulledItem]:
        return await self._ask(lambda raas: raas.pull(request))

    async def cancel(self, task_ids: list[str]) -> m.CancelResult:
        return await self._ask(lambda raas: raas.cancel(m.CancelRequest(task_ids=task_ids)))

    async def status(self, timeout: float = 5.0) -> m.RaaSStatus:
        return await self._ask(lambda raas: raas.status())

    async def notify_version(
        self, request: m.RaaSNotifyVersionRequest, timeout: float = 300.0
    ) -> m.RaaSNotifyVersionResult:
        if self._alive():
            self._tells(request.model_id, request.version)
        return await self._ask(lambda raas: raas.notify_version(request))

    async def shutdown(self) -> m.Ok:
        async def end(raas: SimulatedRaaS) -> m.Ok:
            raas.leaving = True
            return m.Ok()

        return await self._ask(end)

    async def close(self) -> None:
        pass


@lru_cache(maxsize=4096)
def _turn(first: int, last: int, tokens: int) -> Turn:
    """A sample that began under one version and ended under another."""
    versions = np.full(tokens, first, np.int32)
    versions[tokens // 2 :] = last
    return Turn(
        ids=np.arange(PROMPT + tokens, dtype=np.int32),
        mask=np.repeat(np.array([0, 1], np.uint8), [PROMPT, tokens]),
        logprobs=np.repeat(np.array([0, -0.5], np.float32), [PROMPT, tokens]),
        versions=np.concatenate([np.full(PROMPT, -1, np.int32), versions]),
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
