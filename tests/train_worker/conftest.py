"""A scripted Dataflow and publisher: the real protocol in process, rollouts sampled from the trainer's own engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from astraflow.core.data import Batch, Canary, Group, Manifest, StopReason, Trajectory, Turn, Value
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.http import Endpoint, StatusEndpoint, build_app, in_process

MakeBatch = Callable[[int], Batch]


class ScriptedDataflow:
    """Answers a trainer's routes and notes what it was told."""

    def __init__(self, make_batch: MakeBatch) -> None:
        self.make_batch = make_batch
        self.ready: list[m.ReadyRequest] = []
        self.served: list[int] = []
        self.notified: list[m.NotifyVersionRequest] = []
        self.kept: list[m.SaveBufferRequest] = []
        self.stopped = False
        self.evaluates: Callable[[int], None] | None = None
        """Called in a thread before the results of a version's evaluation are sent."""
        self._held: threading.Event | None = None
        self.app = build_app(
            "scripted dataflow",
            "token",
            [
                StatusEndpoint("/status", self._status),
                Endpoint("POST", "/ready", m.ReadyRequest, self._ready),
                Endpoint("GET", "/batch", m.BatchRequest, self._batch),
                Endpoint("POST", "/notify_version", m.NotifyVersionRequest, self._notify),
                Endpoint("POST", "/save_buffer", m.SaveBufferRequest, self._keep),
                Endpoint("POST", "/shutdown", m.Empty, self._shutdown),
            ],
        )

    @property
    def transport(self) -> httpx.AsyncBaseTransport:
        return in_process(self.app)

    def hold_batches(self) -> threading.Event:
        """Answer no batch from now on; the event says that one is waited for."""
        self._held = threading.Event()
        return self._held

    async def _ready(self, request: m.ReadyRequest) -> m.ReadyReply:
        self.ready.append(request)
        return m.ReadyReply(next_version=max((n.version for n in self.notified), default=0) + 1)

    def _status(self) -> dict[str, Any]:
        return {"status": "ready", "agents": {"model0": {"trainer_ready": bool(self.ready)}}}

    async def _keep(self, request: m.SaveBufferRequest) -> m.Ok:
        self.kept.append(request)
        return m.Ok()

    async def _batch(self, request: m.BatchRequest) -> m.BatchReply:
        if self._held is not None:
            self._held.set()
            await asyncio.get_running_loop().create_future()
        self.served.append(request.version)
        return m.BatchReply(batch=self.make_batch(request.version), buffer_stats={"buffer/ready": 3.0})

    async def _notify(self, request: m.NotifyVersionRequest) -> m.NotifyVersionReply:
        self.notified.append(request)
        if request.run_eval and self.evaluates is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.evaluates, request.version)
        return m.NotifyVersionReply(eval_results=evaluation(request.version) if request.run_eval else None)

    async def _shutdown(self, request: m.Empty) -> m.Ok:
        self.stopped = True
        return m.Ok()


def evaluation(version: int) -> m.EvalResults:
    """An evaluation round whose avg@k is its version."""
    dataset = m.EvalDatasetResult(
        avg_at_k=float(version),
        pass_at_k=50.0,
        mean_reward=0.5,
        correct=1,
        total=2,
        sample_count=8,
        k=4,
        avg_at_k_interval=(0.0, 100.0),
        pass_at_k_interval=(0.0, 100.0),
        greedy=75.0,
    )
    return m.EvalResults(
        datasets={"held_out": dataset}, overall_avg_at_k=float(version), overall_pass_at_k=50.0, version=version
    )


class ScriptedPublisher:
    """Notes versions and copies weights."""

    def __init__(self) -> None:
        self.versions: dict[int, dict[str, Tensor]] = {}
        self.aliases: Mapping[str, tuple[str, ...]] | None = None
        self.canaries: tuple[Canary, ...] = ()

    def initialize(
        self, named_params: Mapping[str, Tensor], aliases: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        self.aliases = aliases

    def offload(
        self,
        named_params: Mapping[str, Tensor],
        version: int,
        *,
        canaries: tuple[Canary, ...] = (),
        restored: bool = False,
    ) -> dict[str, float]:
        self.canaries = canaries
        self.versions[version] = {name: tensor.clone() for name, tensor in named_params.items()}
        return {"copy_s": 0.0}

    def manifest(self, version: int) -> Manifest:
        assert version in self.versions
        return Manifest(model_id="model0", version=version, tensors=(), digest=f"digest-{version}")

    def get_sender_endpoint(self) -> str:
        return "127.0.0.1:1"


class RecordedMetrics:
    """Keeps what is committed."""

    def __init__(self) -> None:
        self.records: dict[int, dict[str, float]] = {}

    def commit(self, step: int, stats: Mapping[str, float]) -> None:
        self.records[step] = dict(stats)


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def trajectory(
    group: int, sample: int, prompt: list[int], sampled: list[int], reward: float, **arrays: Any
) -> Trajectory:
    """One turn: a prompt and what was sampled after it."""
    n, k = len(prompt), len(sampled)
    logprobs = np.concatenate([np.zeros(n), arrays.get("logprobs", np.full(k, -1.0))]).astype(np.float32)
    versions = np.concatenate([np.full(n, -1), arrays.get("versions", np.zeros(k))]).astype(np.int32)
    turn = Turn(
        ids=np.array([*prompt, *sampled], np.int32),
        mask=np.repeat(np.array([0, 1], np.uint8), [n, k]),
        logprobs=logprobs,
        versions=versions,
    )
    return Trajectory(
        task_id=str(group),
        group_id=group,
        sample_id=(group << 16) | sample,
        turns=(turn,),
        reward=Value(reward),
        stop=StopReason.STOP,
    ).check()


def batch_of(trajectories: list[Trajectory]) -> Batch:
    groups: dict[int, list[Trajectory]] = {}
    for item in trajectories:
        groups.setdefault(item.group_id, []).append(item)
    return Batch.of(
        [
            Group(group_id=number, task_id=str(number), prompt_id=number, model_id="model0", trajectories=tuple(items))
            for number, items in groups.items()
        ]
    ).check()


def sample_batch(
    next_token_logits: Callable[[list[list[int]]], Tensor],
    reward: Callable[[list[int]], float],
    version: int,
    *,
    groups: int = 4,
    samples: int = 8,
    length: int = 3,
    temperature: float = 1.0,
) -> Batch:
    """Sample trajectories from a model: `next_token_logits` maps rows to their next logits [rows, V]."""
    generator = torch.Generator().manual_seed(version)
    prompts = [[10 + group, 20] for group in range(groups) for _ in range(samples)]
    sampled: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    for _ in range(length):
        logits = next_token_logits([p + s for p, s in zip(prompts, sampled, strict=True)])
        distribution = (logits / temperature).log_softmax(-1)
        tokens = torch.multinomial(distribution.exp(), 1, generator=generator).squeeze(1)
        for row, token in enumerate(tokens.tolist()):
            sampled[row].append(token)
            logprobs[row].append(float(distribution[row, token]))
    return batch_of(
        [
            trajectory(
                row // samples + 100 * version,
                row % samples,
                prompts[row],
                sampled[row],
                reward(sampled[row]),
                logprobs=np.array(logprobs[row]),
                versions=np.full(length, version),
            )
            for row in range(len(prompts))
        ]
    )


@pytest.fixture(name="loop")
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    with running_loop() as loop:
        yield loop


@pytest.fixture(name="scripted")
def _scripted() -> SimpleNamespace:
    """The scripted parts and the batches they are given."""
    return SimpleNamespace(
        Dataflow=ScriptedDataflow,
        Publisher=ScriptedPublisher,
        Metrics=RecordedMetrics,
        trajectory=trajectory,
        batch_of=batch_of,
        sample_batch=sample_batch,
        evaluation=evaluation,
    )
