"""Dataflow's peers, scripted: a RaaS that answers from a function and a trainer that only counts.

For tests and benches. They speak the real protocol, so that everything between them and the ledger is what a run uses;
`Rehearsal` puts them and the service into one process, without sockets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import numpy as np

from astraflow.core.data import Failed, Manifest, StopReason, Trajectory, Turn, Value
from astraflow.core.data.trajectory import Episode, EpisodeResult, GroupResult, Reward, Row
from astraflow.core.protocol import DataflowClient, Endpoint, RaaSClient, StatusEndpoint, build_app, in_process
from astraflow.core.protocol import messages as m
from astraflow.dataflow.app import create_app
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.eval_log import EvalLog
from astraflow.dataflow.service import AstraFlow
from astraflow.dataflow.store import LedgerStore
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.errors import ConflictError, PeerError

Outcome = float | Reward | Failed | tuple[Trajectory, ...]
"""What a sample is scripted to be: a number is Value(number)."""

Script = Callable[[m.Task, int], Sequence[Outcome] | None]
"""(task, version served) → an outcome per sample, or None to reject."""


def manifest(version: int, model_id: str = "model0", digest: str | None = None) -> Manifest:
    """A version without tensors whose digest names it."""
    return Manifest(model_id=model_id, version=version, tensors=(), digest=digest or f"{model_id}@{version}")


def trajectory(
    task: m.Task, index: int, reward: Reward, versions: Sequence[int], *, model_id: str = "model0", prompt: int = 2
) -> Trajectory:
    """One sample whose token i was sampled by versions[i]."""
    n = len(versions)
    turn = Turn(
        ids=np.arange(prompt + n, dtype=np.int32),
        mask=np.repeat(np.array([0, 1], np.uint8), [prompt, n]),
        logprobs=np.repeat(np.array([0, -0.5], np.float32), [prompt, n]),
        versions=np.concatenate([np.full(prompt, -1, np.int32), np.array(versions, np.int32)]),
    )
    return Trajectory(
        task_id=task.task_id,
        group_id=task.group_id,
        sample_id=(task.group_id << 16) | index,
        model_id=model_id,
        turns=(turn,),
        reward=reward,
        stop=StopReason.STOP,
    )


def group_result(
    task: m.Task, outcomes: Sequence[Outcome], versions: Sequence[int] = (0, 0, 0), model_id: str = "model0"
) -> GroupResult:
    """A finished task with these outcomes, each token i of a sample made by versions[i]."""
    episodes: list[EpisodeResult] = []
    for index, outcome in enumerate(outcomes):
        if isinstance(outcome, Failed):
            episodes.append(outcome)
        elif isinstance(outcome, tuple):
            episodes.append(Episode(outcome))
        else:
            reward: Reward = Value(float(outcome)) if isinstance(outcome, int | float) else outcome
            episodes.append(Episode((trajectory(task, index, reward, versions, model_id=model_id),)))
    return GroupResult(group_id=task.group_id, episodes=tuple(episodes))


class ScriptedRaaS:
    """A RaaS without engines. With `hold`, tasks end only when `finish` is called."""

    def __init__(
        self,
        uid: str,
        token: str,
        script: Script,
        *,
        models: Sequence[str] = ("model0",),
        max_concurrency: int = 8,
        tokens: int = 3,
        hold: bool = False,
    ) -> None:
        """tokens: sampled ones of each sample."""
        self.uid = uid
        self.url = f"http://{uid}"
        self.dead = False
        """Every call fails."""
        self.refuse_pulls = False
        """New versions are not pulled: it stays on the one it has."""
        self.digest: str | None = None
        """What it claims its weights' digest to be, instead of the manifest's."""
        self.running: dict[str, tuple[m.SubmitRequest, m.Task]] = {}
        self.workflows: dict[str, m.RegisterWorkflowRequest] = {}
        self.submitted: list[tuple[m.Lane, int, int]] = []
        """(lane, group_id, version served) of every task it took."""
        self._script = script
        self._models = tuple(models)
        self._max_concurrency = max_concurrency
        self._tokens = tokens
        self._hold = hold
        self._held_lanes: set[m.Lane] = set()
        self._versions: dict[str, m.VersionState] = {}
        self._results: dict[m.Lane, dict[str, m.PulledItem]] = {"train": {}, "eval": {}}
        self._sent: dict[m.Lane, set[str]] = {"train": set(), "eval": set()}
        self._news = asyncio.Condition()
        self.app: Any = build_app("scripted RaaS", token, self._endpoints())

    @property
    def version(self) -> int:
        """What it serves; -1 before its first pull."""
        return min((state.number for state in self._versions.values()), default=-1)

    @property
    def versions(self) -> dict[str, int]:
        """model_id → what it serves."""
        return {model_id: state.number for model_id, state in self._versions.items()}

    def registration(self, **capabilities: Any) -> m.RegisterRaaSRequest:
        given = {"max_concurrency": self._max_concurrency, "models": list(self._models), **capabilities}
        return m.RegisterRaaSRequest(uid=self.uid, raas_url=self.url, capabilities=given)

    def hold(self, lane: m.Lane) -> None:
        """From now on tasks of a lane end only when `finish` is called."""
        self._held_lanes.add(lane)

    async def die(self) -> None:
        """From now on every call fails, the polls that wait included."""
        self.dead = True
        async with self._news:
            self._news.notify_all()

    def restart(self) -> None:
        """Be another process at the same address, which knows nothing of what this one had."""
        self.dead = False
        self.running.clear()
        self.workflows.clear()
        self._versions.clear()
        for lane in self._results:
            self._results[lane].clear()
            self._sent[lane].clear()

    async def finish(self, task_ids: Sequence[str] | None = None, versions: Sequence[int] | None = None) -> int:
        """End held tasks (None: all), optionally with tokens of these versions; returns how many ended."""
        ids = [i for i in (list(self.running) if task_ids is None else task_ids) if i in self.running]
        for task_id in ids:
            request, task = self.running.pop(task_id)
            outcomes = self._script(task, self.version)
            result = None
            if outcomes is not None:
                result = group_result(task, outcomes, versions or [self.version] * self._tokens, self._models[0])
            self._results[request.lane][task_id] = m.PulledItem(task_id=task_id, lease=task.lease, result=result)
        async with self._news:
            self._news.notify_all()
        return len(ids)

    def _endpoints(self) -> list[Endpoint | StatusEndpoint]:
        def post(path: str, request: type[m.Request], method: str) -> Endpoint:
            async def alive(message: Any) -> Any:
                if self.dead:
                    raise PeerError(f"{self.uid} is dead")
                # looked up at each call, so that a test can replace it
                return await getattr(self, method)(message)

            return Endpoint("POST", path, request, alive, envelope=True)

        return [
            post("/register_workflow", m.RegisterWorkflowRequest, "register_workflow"),
            post("/submit", m.SubmitRequest, "submit"),
            post("/pull", m.PullRequest, "pull"),
            post("/cancel", m.CancelRequest, "cancel"),
            post("/notify_version", m.RaaSNotifyVersionRequest, "notify_version"),
            StatusEndpoint("/status", self._status),
        ]

    async def register_workflow(self, request: m.RegisterWorkflowRequest) -> m.RegisterWorkflowResult:
        new = self.workflows.setdefault(request.workflow_id, request) is request
        return m.RegisterWorkflowResult(
            workflow_id=request.workflow_id, registered=new, total_workflows=len(self.workflows)
        )

    async def submit(self, request: m.SubmitRequest) -> list[m.Accepted]:
        if request.version is not None and request.version != self.version:
            raise ConflictError(f"version {self.version} is served")
        for task in request.tasks:
            if task.task_id not in self.running:
                self.running[task.task_id] = (request, task)
                self.submitted.append((request.lane, task.group_id, self.version))
        if not self._hold and request.lane not in self._held_lanes:
            await self.finish([task.task_id for task in request.tasks])
        return [m.Accepted(task_id=task.task_id, accepted=True) for task in request.tasks]

    async def pull(self, request: m.PullRequest) -> list[m.PulledItem]:
        results, sent = self._results[request.lane], self._sent[request.lane]
        for task_id in request.ack:
            results.pop(task_id, None)
            sent.discard(task_id)
        # a poll that was not acknowledged is repeated
        if sent:
            return [results[task_id] for task_id in sorted(sent)]
        try:
            async with asyncio.timeout(request.timeout), self._news:
                await self._news.wait_for(lambda: bool(results) or self.dead)
        except TimeoutError:
            return []
        if self.dead:
            raise PeerError(f"{self.uid} is dead")
        items = list(results.values())[: request.max_items]
        sent.update(item.task_id for item in items)
        return items

    async def cancel(self, request: m.CancelRequest) -> m.CancelResult:
        known = [task_id for task_id in request.task_ids if self.running.pop(task_id, None)]
        return m.CancelResult(cancelled=known)

    async def notify_version(self, request: m.RaaSNotifyVersionRequest) -> m.RaaSNotifyVersionResult:
        served = self._versions.get(request.model_id)
        number = served.number if served else -1
        if self.refuse_pulls or request.manifest is None or request.version <= number:
            reason = f"version={request.version} <= local={number}"
            return m.RaaSNotifyVersionResult(
                ok=True, model_id=request.model_id, version=number, pulled=False, reason=reason
            )
        digest = self.digest or request.manifest.digest
        self._versions[request.model_id] = m.VersionState(number=request.version, digest=digest, verified=True)
        return m.RaaSNotifyVersionResult(ok=True, model_id=request.model_id, version=request.version, pulled=True)

    def _status(self) -> m.RaaSStatus:
        if self.dead:
            raise PeerError(f"{self.uid} is dead")
        return m.RaaSStatus(
            status="ready" if self._versions else "idle",
            engine_id=self.uid,
            backend="scripted",
            models=list(self._models),
            versions=self._versions,
            inflight=len(self.running),
        )


class ScriptedTrainer:
    """Pulls batches and announces versions."""

    def __init__(self, client: DataflowClient, *, batch_size: int, model_id: str = "model0") -> None:
        self.version = 0
        self.step = 0
        self._client = client
        self._batch_size = batch_size
        self._model_id = model_id

    async def recover(self, step: int, version: int = 0) -> m.NotifyVersionReply:
        """Come back at a step, as a trainer that was started again, and announce its weights under a new number."""
        await self.ready_again(step, version)
        return await self.announce()

    async def ready_again(self, step: int, version: int = 0) -> None:
        """Only the first half of it: what it was restored to is not announced."""
        request = m.ReadyRequest(
            train_batch_size=self._batch_size,
            sender_endpoint="127.0.0.1:2",
            model_id=self._model_id,
            recovered_version=version,
            recovered_step=step,
        )
        self.version, self.step = (await self._client.ready(request)).next_version, step

    async def begin(self, run_eval: bool = False) -> m.NotifyVersionReply:
        """Call /ready and announce version 0."""
        request = m.ReadyRequest(
            train_batch_size=self._batch_size,
            sender_endpoint="127.0.0.1:1",
            model_id=self._model_id,
            manifest=manifest(0, self._model_id),
        )
        await self._client.ready(request)
        return await self.announce(run_eval)

    async def batch(self, timeout: float = 30.0) -> m.BatchReply:
        return await self._client.batch(self._model_id, self.version, timeout)

    async def train(self, timeout: float = 30.0, run_eval: bool = False, last: bool = False) -> m.BatchReply:
        """One step: a batch, then the next version."""
        reply = await self.batch(timeout)
        self.version, self.step = self.version + 1, self.step + 1
        await self.announce(run_eval, last)
        return reply

    async def announce(self, run_eval: bool = False, last: bool = False) -> m.NotifyVersionReply:
        request = m.NotifyVersionRequest(
            version=self.version,
            step=self.step,
            run_eval=run_eval,
            model_id=self._model_id,
            manifest=manifest(self.version, self._model_id),
            last=last,
        )
        return await self._client.notify_version(request)


def example_rows(n: int) -> list[Row]:
    """Rows of a dataset that needs no package."""
    return [
        {"messages": [{"role": "user", "content": f"{i}+1="}], "answer": str(i + 1), "task_id": f"sum-{i}"}
        for i in range(n)
    ]


class RaaSPeer(Protocol):
    """A RaaS in this process: scripted, or a real service."""

    url: str
    app: Any

    def registration(self, **capabilities: Any) -> m.RegisterRaaSRequest: ...


class Rehearsal:
    """Dataflow with scripted peers in one process. Use `running()`; RaaS are added with `join`."""

    TOKEN = "rehearsal"

    def __init__(
        self,
        settings: DataflowSettings,
        *,
        rows: Sequence[Row] | Mapping[str, Sequence[Row]] | None = None,
        eval_rows: Mapping[str, Sequence[Row]] | None = None,
        trajectories: TrajectoryLog | None = None,
        store: LedgerStore | None = None,
        eval_log: EvalLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """rows: of the only rollout dataset, or by dataset."""
        self.raas: dict[str, RaaSPeer] = {}
        self.service = AstraFlow(
            settings,
            rows or example_rows(50),
            eval_rows or {},
            self._connect,
            trajectories or TrajectoryLog(None),
            store=store,
            eval_log=eval_log,
            clock=clock,
        )
        self.app = create_app(self.service, self.TOKEN)
        self.client = DataflowClient("http://dataflow", self.TOKEN, transport=in_process(self.app))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Rehearsal]:
        """Start the service, and stop it in order."""
        self.service.start()
        try:
            yield self
        finally:
            await self.service.stop()
            await self.client.close()

    async def join(self, raas: RaaSPeer, **capabilities: Any) -> m.RegisterRaaSReply:
        """Let a RaaS register itself."""
        self.raas[raas.url] = raas
        return await self.client.register_raas(raas.registration(**capabilities))

    def trainer(self, batch_size: int, model_id: str = "model0") -> ScriptedTrainer:
        return ScriptedTrainer(self.client, batch_size=batch_size, model_id=model_id)

    def _connect(self, url: str) -> RaaSClient:
        return RaaSClient(url, self.TOKEN, transport=in_process(self.raas[url].app))
