"""LAW 22: Generating is impossible between "weights dropped" and "version acknowledged"."""

import asyncio
from typing import Never

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, Manifest
from astraflow.core.protocol import messages as m
from astraflow.errors import ConflictError, WeightError
from astraflow.raas.engines.scripted import ScriptedEngine
from astraflow.raas.generate import generate
from astraflow.raas.router import Router
from astraflow.raas.updater import Updater


class Payload:
    """Refuses to be applied while `broken`."""

    mode, bytes = "full", 0

    def __init__(self, manifest: Manifest, broken: bool) -> None:
        self.manifest, self.broken = manifest, broken
        self.timing: dict[str, float] = {}

    def apply(self, weights: object) -> None:
        if self.broken:
            raise WeightError("rolled back")

    def rollback(self) -> None: ...

    def release(self) -> None: ...


class Source:
    def __init__(self) -> None:
        self.arrive = asyncio.Event()
        self.broken = False

    async def pull(self, endpoint: str, manifest: Manifest) -> Payload:
        await self.arrive.wait()
        return Payload(manifest, self.broken)

    async def close(self) -> None: ...


def no_manifest(endpoint: str, version: int) -> Never:
    raise AssertionError("each announcement comes with its manifest")


def announce(version: int) -> m.RaaSNotifyVersionRequest:
    manifest = Manifest(model_id="model0", version=version, tensors=(), digest=f"d{version}")
    return m.RaaSNotifyVersionRequest(model_id="model0", version=version, sender_endpoint="x:1", manifest=manifest)


def request(rid: str) -> m.GenerateRequest:
    return m.GenerateRequest(rid=rid, input_ids=np.array([1]), gconfig=GenerationHyperparameters(max_new_tokens=3))


def test_requests_wait_at_the_gate_until_the_first_version_is_proven() -> None:
    async def body() -> None:
        engine = ScriptedEngine("model0", lambda asked: [7] * 9, version=-1)
        router, source = Router([engine]), Source()
        updater = Updater(engine, lambda: source, no_manifest, router.serves)
        early = asyncio.create_task(router.agenerate(request("early")))
        with pytest.raises(ConflictError, match="serves no verified version"):
            await generate(router, request("refused"))

        source.broken = True
        source.arrive.set()
        with pytest.raises(WeightError):
            await updater.notify(announce(0))
        assert engine.load().tokens_generated == 0
        assert not early.done(), "a version that was not proven opens nothing"

        source.broken = False
        await updater.notify(announce(0))
        assert (await early).output_versions.tolist() == [0, 0, 0]
        await updater.close()
        await engine.close()

    asyncio.run(body())
