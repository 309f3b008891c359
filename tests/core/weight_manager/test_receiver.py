from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch

from astraflow.core.data import Manifest
from astraflow.core.weight_manager import WeightManager, receiver
from astraflow.core.weight_manager.handover import digest_of
from astraflow.core.weight_manager.payload import FullPayload, Payload
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.errors import CallerError, DeadlineError, PeerError, UnknownNameError, WeightError

PARAMS = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}


class Published:
    def __init__(self, endpoint: str, manifest: Manifest) -> None:
        self.endpoint = endpoint
        self.manifest = manifest


@pytest.fixture(scope="module")
def published() -> Iterator[Published]:
    with WeightManager("model0", "secret") as manager:
        manager.initialize(PARAMS)
        manager.offload(PARAMS, 3)
        yield Published(manager.get_sender_endpoint(), manager.manifest(3))


def pull(endpoint: str, manifest: Manifest, token: str = "secret", timeout: float = 60.0) -> Payload:
    async def body() -> Payload:
        receiver = Receiver("127.0.0.1", 1, token)
        try:
            return await receiver.pull(endpoint, manifest, timeout)
        finally:
            await receiver.close()

    return asyncio.run(body())


def engine() -> dict[str, np.ndarray]:
    return {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)}


def test_an_engine_of_buffers_needs_no_torch(published: Published) -> None:
    weights = engine()
    pull(published.endpoint, published.manifest).apply(weights)
    assert weights["w"].tolist() == PARAMS["w"].tolist()


def test_a_payload_can_be_taken_back_after_a_later_check_fails(published: Published) -> None:
    weights = engine()
    payload = pull(published.endpoint, published.manifest)
    payload.apply(weights)
    payload.rollback()
    assert not weights["w"].any()


def test_a_payload_is_applied_once(published: Published) -> None:
    payload = pull(published.endpoint, published.manifest)
    with pytest.raises(WeightError, match="version 3 is not applied"):
        payload.rollback()
    payload.apply(engine())
    with pytest.raises(WeightError, match="version 3 was applied or released already"):
        payload.apply(engine())
    payload.release()
    payload.release()
    with pytest.raises(WeightError, match="version 3 is not applied, or was released"):
        payload.rollback()


def test_memory_is_used_again_only_when_it_was_given_back(published: Published) -> None:
    async def body() -> None:
        receiver = Receiver("127.0.0.1", 1, "secret")
        first = await receiver.pull(published.endpoint, published.manifest)
        second = await receiver.pull(published.endpoint, published.manifest)
        assert isinstance(first, FullPayload)
        assert isinstance(second, FullPayload)
        assert first._staging is not second._staging
        kept = first._staging
        first.release()
        third = await receiver.pull(published.endpoint, published.manifest)
        assert isinstance(third, FullPayload)
        assert third._staging is kept
        for payload in (second, third):
            payload.apply(engine())
        await receiver.close()

    asyncio.run(body())


class Failing:
    """An engine's own handover that reports the digests it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.log: list[str] = []

    def apply(self, manifest: Manifest, payload: memoryview) -> None:
        self.log.append("apply")

    def digests(self, manifest: Manifest) -> tuple[str, ...]:
        self.log.append("digests")
        if self.error:
            raise self.error
        return tuple("0" * 32 for _ in manifest.tensors)

    def rollback(self) -> None:
        self.log.append("rollback")


def test_an_engine_that_says_yes_and_did_nothing_is_found_out(published: Published) -> None:
    own = Failing()
    with pytest.raises(WeightError, match=r"does not hold version 3 .*2 of 2 tensors, the first is w; rolled back"):
        pull(published.endpoint, published.manifest).apply(own)
    assert own.log == ["apply", "digests", "rollback"]


def test_an_engine_whose_proof_fails_is_rolled_back(published: Published) -> None:
    own = Failing(RuntimeError("device lost"))
    with pytest.raises(WeightError, match=r"version 3 cannot be proven: RuntimeError: device lost"):
        pull(published.endpoint, published.manifest).apply(own)
    assert own.log[-1] == "rollback"


def test_a_manifest_that_contradicts_itself_is_refused(published: Published) -> None:
    with pytest.raises(WeightError, match="total digest"):
        pull(published.endpoint, msgspec.structs.replace(published.manifest, digest="0" * 32))


def test_another_version_of_the_same_number_is_refused(published: Published) -> None:
    other = {"w": PARAMS["w"] + 1, "b": PARAMS["b"]}
    with WeightManager("model0", "secret") as manager:
        manager.initialize(other)
        manager.offload(other, 3)
        manager.manifest(3)
        words = f"has digest {published.manifest.digest}; the sender .* another version of that number"
        with pytest.raises(WeightError, match=words):
            pull(manager.get_sender_endpoint(), published.manifest)


def test_a_sender_of_other_shapes_is_refused(published: Published) -> None:
    with WeightManager("model0", "secret") as manager:
        manager.initialize({"w": torch.zeros(1000)})
        manager.offload({"w": torch.zeros(1000)}, 3)
        manager.manifest(3)
        with pytest.raises(WeightError, match="offers 4000 bytes as version 3 of model0, its manifest says 72"):
            pull(manager.get_sender_endpoint(), published.manifest)


def test_a_wrong_token_is_refused(published: Published) -> None:
    with pytest.raises(CallerError, match="bearer token"):
        pull(published.endpoint, published.manifest, token="wrong")


def test_a_sender_that_is_not_there_is_a_peer_error(published: Published) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(PeerError, match=f"127.0.0.1:{port}"):
        pull(f"127.0.0.1:{port}", published.manifest)


def test_a_sender_that_does_not_answer_ends_at_the_deadline(published: Published) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DeadlineError, match=f"version 3 of model0 was not pulled from {endpoint} within"):
            pull(endpoint, published.manifest, timeout=0.1)


def test_an_unknown_transport_is_refused_at_once() -> None:
    with pytest.raises(UnknownNameError, match="known: disk, shm, tcp"):
        Receiver("127.0.0.1", 1, "secret", transport="rdma")


def test_the_bytes_that_a_payload_holds_are_the_manifests(published: Published) -> None:
    payload = pull(published.endpoint, published.manifest)
    weights = engine()
    payload.apply(weights)
    assert payload.bytes == published.manifest.nbytes
    assert digest_of(weights, published.manifest) == published.manifest.digest
    assert receiver.FETCHES == 2
