"""LAW 18. After each swap, resume and scale-up the engine's own digest equals the manifest's; canary prompts' logprobs
agree with the trainer within tolerance; "the version moved, the digest did not" is an alarm.

Here: the digests. Whatever goes wrong between trainer and engine is detected and the engine is left as it was; clean
syncs never alarm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import pytest
import torch
from torch import Tensor

from astraflow.core.data import Manifest
from astraflow.core.weight_manager import WeightManager
from astraflow.core.weight_manager.handover import digest_of
from astraflow.core.weight_manager.payload import Payload
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.core.weight_manager.tensors import TensorHandover
from astraflow.core.weight_manager.transports import TRANSPORTS
from astraflow.core.weight_manager.transports.tcp import TcpFetch
from astraflow.errors import WeightError

CLEAN_SYNCS = 200


def parameters(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(16, 4, generator=generator) for name in ("a", "b", "c")}


class Trainer:
    def __init__(self) -> None:
        self.manager = WeightManager("model0", "secret", wire_dtype="bfloat16")
        self.manager.initialize(parameters(0))
        self.version = -1

    def publish(self) -> Manifest:
        self.version += 1
        self.manager.offload(parameters(self.version), self.version)
        return self.manager.manifest(self.version)

    def pull(self, manifest: Manifest) -> Payload:
        async def body() -> Payload:
            receiver = Receiver("127.0.0.1", 1, "secret")
            try:
                return await receiver.pull(self.manager.get_sender_endpoint(), manifest)
            finally:
                await receiver.close()

        return asyncio.run(body())


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    trainer = Trainer()
    yield trainer
    trainer.manager.shutdown()


def test_clean_syncs_never_alarm(trainer: Trainer) -> None:
    async def body() -> None:
        engine = parameters(10**6)
        receivers = [Receiver("127.0.0.1", 1, "secret", transport=name) for name in ("tcp", "shm")]
        for number in range(CLEAN_SYNCS):
            manifest = trainer.publish()
            payload = await receivers[number % 2].pull(trainer.manager.get_sender_endpoint(), manifest)
            payload.apply(engine)
            payload.release()
            assert payload.broken == 0
            assert digest_of(engine, manifest) == manifest.digest
        for receiver in receivers:
            await receiver.close()

    asyncio.run(body())


# ---- in flight -------------------------------------------------------------------------------------------------------


def corrupting(corrupt: list[str], times: int, damage: object) -> type[TcpFetch]:
    """A transport that damages what it fetched, the first `times` times."""

    class Corrupting(TcpFetch):
        def run(self) -> bool:
            complete = super().run()
            if len(corrupt) < times:
                corrupt.append("done")
                damage(self._into)  # type: ignore[operator]
            return complete

    return Corrupting


def flip_a_bit(into: memoryview) -> None:
    into[77] ^= 4


def swap_two_tensors(into: memoryview) -> None:
    into[:128], into[128:256] = bytes(into[128:256]), bytes(into[:128])


def truncate(into: memoryview) -> None:
    into[len(into) - 3 :] = bytes(3)


def serve_an_old_tensor(into: memoryview) -> None:
    into[128:256] = parameters(0)["b"].bfloat16().view(torch.uint8).flatten().numpy().tobytes()


DAMAGES = [flip_a_bit, swap_two_tensors, truncate, serve_an_old_tensor]


@pytest.mark.parametrize("damage", DAMAGES)
def test_bytes_that_arrive_broken_are_fetched_again_and_counted(
    trainer: Trainer, damage: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setitem(TRANSPORTS, "tcp", corrupting(log, 1, damage))
    trainer.publish()
    manifest = trainer.publish()
    payload = trainer.pull(manifest)
    assert log == ["done"]
    assert payload.broken >= 1
    engine = parameters(99)
    payload.apply(engine)
    assert digest_of(engine, manifest) == manifest.digest


@pytest.mark.parametrize("damage", DAMAGES)
def test_bytes_that_stay_broken_are_never_applied(
    trainer: Trainer, damage: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRANSPORTS, "tcp", corrupting([], 100, damage))
    trainer.publish()
    manifest = trainer.publish()
    with pytest.raises(
        WeightError, match=f"version {manifest.version} of model0 arrived broken 2 times: . of 3 tensors"
    ):
        trainer.pull(manifest)


# ---- in the engine ---------------------------------------------------------------------------------------------------


class DoesNothing(TensorHandover):
    def apply(self, manifest: Manifest, payload: memoryview) -> None:
        pass


class SwapsTwoTensors(TensorHandover):
    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__({**weights, "a": weights["b"], "b": weights["a"]})
        self._true = TensorHandover(weights)

    def digests(self, manifest: Manifest) -> tuple[str, ...]:
        return self._true.digests(manifest)


class MissesOneElement(TensorHandover):
    def apply(self, manifest: Manifest, payload: memoryview) -> None:
        before = self._weights["c"][3, 1].clone()
        super().apply(manifest, payload)
        self._weights["c"][3, 1] = before


class RoundsOnceMore(TensorHandover):
    def apply(self, manifest: Manifest, payload: memoryview) -> None:
        super().apply(manifest, payload)
        self._weights["a"].copy_(self._weights["a"].to(torch.float8_e4m3fn))


@pytest.mark.parametrize("faulty", [DoesNothing, SwapsTwoTensors, MissesOneElement, RoundsOnceMore])
def test_an_engine_that_holds_something_else_is_found_out_and_rolled_back(
    trainer: Trainer, faulty: type[TensorHandover]
) -> None:
    payload = trainer.pull(trainer.publish())
    engine = parameters(99)
    with pytest.raises(WeightError, match=r"the engine does not hold version .* rolled back"):
        payload.apply(faulty(engine))
    for name, value in parameters(99).items():
        assert torch.equal(engine[name], value)


def test_a_wrong_dtype_is_refused_before_anything_changes(trainer: Trainer) -> None:
    payload = trainer.pull(trainer.publish())
    engine = {name: value.half() for name, value in parameters(99).items()}
    with pytest.raises(WeightError, match="a is float16 in the engine, which cannot hold bfloat16 exactly"):
        payload.apply(engine)
    assert torch.equal(engine["a"], parameters(99)["a"].half())


def test_a_tensor_that_no_version_mentions_is_an_alarm(trainer: Trainer) -> None:
    payload = trainer.pull(trainer.publish())
    with pytest.raises(WeightError, match="says nothing of the engine's adapter"):
        payload.apply({**parameters(99), "adapter": torch.zeros(1)})
