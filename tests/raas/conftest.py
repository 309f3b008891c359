"""A RaaS in this process: scripted engine, fake weights, real wire messages through ASGI."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from astraflow.core.config import ExperimentConfig
from astraflow.core.data import GenerationHyperparameters, Manifest, ModelRequest, TensorEntry
from astraflow.core.protocol import RaaSClient, in_process
from astraflow.core.protocol import messages as m
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.workflow.registry import register_reward
from astraflow.errors import PeerError, WeightError
from astraflow.raas.app import make_service, raas_app
from astraflow.raas.config import RaaSConfig, RaaSModelConfig, RaaSSettings, RolloutConfig
from astraflow.raas.engines.scripted import ScriptedEngine
from astraflow.raas.service import RaaSService

TOKEN = "secret"
TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_ids[0]


def manifest_of(version: int, digest: str | None = None, model_id: str = "model0") -> Manifest:
    entry = TensorEntry(name="w", shape=(1,), dtype="float32", offset=0, nbytes=4, digest="0" * 32)
    return Manifest(model_id=model_id, version=version, tensors=(entry,), digest=digest or f"digest-{version}")


class FakePayload:
    """Bytes that are right, or (`broken`) found wrong by the engine's own digest."""

    bytes = 4

    def __init__(self, wanted: Manifest, broken: bool, mode: str = "full") -> None:
        self.manifest = wanted
        self.mode = mode
        self.timing = {"pull_s": 0.25, "verify_s": 0.5}
        self.broken = broken
        self.released = False

    def apply(self, weights: Any) -> None:
        if self.broken:
            raise WeightError("the engine does not hold the version after it was applied; rolled back")

    def rollback(self) -> None: ...

    def release(self) -> None:
        self.released = True


@dataclass
class FakeWeights:
    """A WeightSource whose pulls wait for `arrive`, where a test clears it."""

    arrive: asyncio.Event = field(default_factory=asyncio.Event)
    pulls: list[int] = field(default_factory=list)
    payloads: list[FakePayload] = field(default_factory=list)
    broken: bool = False
    away: bool = False
    """The sender cannot be reached."""
    broken_delta: bool = False
    """The next pull gives a delta, which the engine does not take."""
    newest: int | None = None
    """The version that is given instead of an older one that is gone."""
    pulling: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.arrive.set()

    async def pull(self, endpoint: str, manifest: Manifest) -> FakePayload:
        self.pulls.append(manifest.version)
        self.pulling.set()
        await self.arrive.wait()
        if self.away:
            raise PeerError("http://127.0.0.1:1/register_sglang_instance: ConnectError")
        if self.broken_delta:
            self.broken_delta = False
            payload = FakePayload(manifest, broken=True, mode="delta")
        else:
            payload = FakePayload(manifest if self.newest is None else manifest_of(self.newest), self.broken)
        self.payloads.append(payload)
        return payload

    async def close(self) -> None:
        self.arrive.set()


@register_reward("is_right")
def is_right(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], answer: str, **row: Any
) -> float:
    return float(completions == answer)


def answer_42(request: ModelRequest) -> list[int]:
    return [*TOKENIZER.encode("42"), END]


@dataclass
class Harness:
    """One service with its client."""

    service: RaaSService
    client: RaaSClient
    engine: ScriptedEngine
    weights: FakeWeights

    async def publish(
        self, version: int, digest: str | None = None, announced: int | None = None
    ) -> m.RaaSNotifyVersionResult:
        """Announce a version's manifest (under another number, where `announced` says so)."""
        request = m.RaaSNotifyVersionRequest(
            model_id="model0",
            version=version if announced is None else announced,
            sender_endpoint="x:1",
            manifest=manifest_of(version, digest),
        )
        return await self.client.notify_version(request)

    async def register(self, **changes: Any) -> m.RegisterWorkflowResult:
        spec = {"workflow_id": "default", "workflow_cls": "rlvr", "reward_fn": "is_right", **changes}
        return await self.client.register_workflow(m.RegisterWorkflowRequest(**spec))

    async def submit(self, *ids: str, lane: m.Lane = "train", **changes: Any) -> list[m.Accepted]:
        tasks = [task(task_id, **changes) for task_id in ids]
        return await self.client.submit(m.SubmitRequest(tasks=tasks, lane=lane))

    async def results(self, count: int = 1, lane: m.Lane = "train") -> list[m.PulledItem]:
        """Wait until `count` results are there."""
        async with asyncio.timeout(60):
            while True:
                items = await self.client.pull(m.PullRequest(timeout=5, lane=lane))
                if len(items) >= count:
                    return items
                async with self.service._finished:
                    await self.service._finished.wait()


def task(task_id: str, **changes: Any) -> m.Task:
    group_id = int(task_id.strip("abcdefghijklmnopqrstuvwxyz-") or 0)
    row = {"messages": [{"role": "user", "content": "6*7="}], "answer": "42", "task_id": task_id}
    return m.Task(task_id=task_id, group_id=group_id, data=row, **changes)


Body = Callable[[Harness], Awaitable[None]]


@pytest.fixture
def raas(tmp_path: Path) -> Callable[..., None]:
    """Run a test's coroutine with a harness of its own; keywords choose script, concurrency, n_samples."""
    TOKENIZER.save(tmp_path)

    def run(body: Body, **options: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), _harness(tmp_path, **options) as harness:
                await body(harness)

        asyncio.run(main())

    return run


@asynccontextmanager
async def _harness(
    path: Path,
    script: Callable[[ModelRequest], list[int]] = answer_42,
    max_concurrent: int = 4,
    n_samples: int = 2,
    unsupported: tuple[str, ...] = (),
) -> AsyncIterator[Harness]:
    gconfig = GenerationHyperparameters(n_samples=n_samples, max_new_tokens=16)
    settings = RaaSSettings(
        experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(path)),
        raas=RaaSConfig(models={"model0": RaaSModelConfig(backend="scripted", gconfig=gconfig)}),
        rollout=RolloutConfig(max_concurrent_rollouts=max_concurrent, reward_workers=0),
        model_paths={"model0": str(path)},
        tokenizer_path=str(path),
        dataflow_urls=[],
        uid="raas-0",
        run_dir=str(path),
    )
    engine = ScriptedEngine("model0", script, eos_token_ids=[END], version=-1, unsupported=unsupported)
    weights = FakeWeights()
    service = make_service(settings, [engine], TOKEN, lambda: weights)
    client = RaaSClient("http://raas", TOKEN, transport=in_process(raas_app(service, TOKEN)))
    try:
        yield Harness(service, client, engine, weights)
        service.table.validate()
    finally:
        await client.close()
        await service.close()
