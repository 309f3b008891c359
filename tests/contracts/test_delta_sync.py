"""Deltas from a real sender agent to an engine, over every transport: what arrives, and when it is the full version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from astraflow.core.data import Manifest
from astraflow.core.protocol import SenderClient
from astraflow.core.protocol.messages import RegisterReceiverRequest, TransferReply, TransferRequest
from astraflow.core.weight_manager import WeightManager, receiver
from astraflow.core.weight_manager.handover import digest_of
from astraflow.core.weight_manager.payload import Payload
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.core.weight_manager.transports import TRANSPORTS, open_fetch
from astraflow.errors import WeightError

TOKEN = "secret"


@pytest.fixture(params=sorted(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Trainer:
    """Parameters of which a few elements change per step, published by a real agent."""

    def __init__(self, transport: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        self._rng = torch.Generator().manual_seed(1)
        shapes = {"embed": (301, 129), "w": (65, 64), "odd": (7,), "scalar": (), "empty": (0, 4), "one": (1,)}
        self.params = {name: torch.randn(s, generator=self._rng).to(dtype) for name, s in shapes.items()}
        self.params["head"] = self.params["embed"]  # tied: the same storage
        self.manager = WeightManager(
            "model0",
            TOKEN,
            transports=(transport,),
            strategy="delta",
            folder=folder / "versions" if transport == "disk" else None,
        )
        self.manager.initialize(self.params)
        self.version = -1

    def step(self, share: float = 0.005) -> Manifest:
        """Change elements and publish; returns when the delta is there, if there is to be one."""
        for name, param in self.params.items():
            if name != "head" and param.numel():
                flat = param.view(-1)
                chosen = torch.rand(flat.shape, generator=self._rng) < share
                flat[chosen] = torch.randn(int(chosen.sum()), generator=self._rng).to(flat.dtype)
        self.version += 1
        self.manager.offload(self.params, self.version)
        self.manager.wait_delta_ready()
        return self.manager.manifest(self.version)

    @property
    def endpoint(self) -> str:
        return self.manager.get_sender_endpoint()

    def engine(self) -> dict[str, torch.Tensor]:
        """Empty weights of an engine that ties its head as the trainer does."""
        engine = {name: torch.zeros_like(param) for name, param in self.params.items()}
        engine["head"] = engine["embed"]
        return engine


def run(
    transport: str, tmp_path: Path, body: Callable[[Trainer, Receiver], Awaitable[None]], interval: int = 0
) -> None:
    async def whole() -> None:
        trainer = Trainer(transport, tmp_path)
        one = Receiver("127.0.0.1", 1, TOKEN, transport=transport, strategy="delta", full_sync_interval=interval)
        try:
            await body(trainer, one)
        finally:
            await one.close()
            trainer.manager.shutdown()

    asyncio.run(whole())


async def sync(one: Receiver, trainer: Trainer, manifest: Manifest, engine: dict[str, torch.Tensor]) -> Payload:
    payload = await one.pull(trainer.endpoint, manifest)
    payload.apply(engine)
    payload.release()
    assert payload.version == manifest.version
    assert digest_of(engine, manifest) == manifest.digest
    return payload


def test_fifty_versions_by_one_full_one_and_deltas(transport: str, tmp_path: Path) -> None:
    """LAW 20: a chain of deltas equals the full version, bit for bit, tied weights and odd shapes included."""

    async def body(trainer: Trainer, one: Receiver) -> None:
        engine = trainer.engine()
        modes = [(await sync(one, trainer, trainer.step(), engine)).mode for _ in range(50)]
        assert modes == ["full"] + ["delta"] * 49
        for name, param in trainer.params.items():
            assert torch.equal(engine[name].view(torch.int16), param.view(torch.int16)), name

    run(transport, tmp_path, body)


def test_a_receiver_that_missed_versions_chains_their_deltas(transport: str, tmp_path: Path) -> None:
    async def body(trainer: Trainer, one: Receiver) -> None:
        engine = trainer.engine()
        await sync(one, trainer, trainer.step(), engine)
        for _ in range(3):
            trainer.step()
        payload = await sync(one, trainer, trainer.step(), engine)
        assert payload.mode == "delta"
        assert payload.bytes < payload.manifest.nbytes / 2

    run(transport, tmp_path, body)


def test_a_receiver_that_missed_too_many_takes_a_full_version(transport: str, tmp_path: Path) -> None:
    async def body(trainer: Trainer, one: Receiver) -> None:
        engine = trainer.engine()
        await sync(one, trainer, trainer.step(), engine)
        for _ in range(9):  # more than the sender keeps
            trainer.step()
        assert (await sync(one, trainer, trainer.step(), engine)).mode == "full"
        assert one.policy.full_because == {"no_proven_base": 1, "base_mismatch": 1}

    run(transport, tmp_path, body)


def test_dense_updates_travel_in_full(transport: str, tmp_path: Path) -> None:
    async def body(trainer: Trainer, one: Receiver) -> None:
        engine = trainer.engine()
        modes = [(await sync(one, trainer, trainer.step(share), engine)).mode for share in (0, 0.7, 0.003)]
        assert modes == ["full", "full", "delta"]
        assert one.policy.full_because["delta_not_ready"] == 1

    run(transport, tmp_path, body)


def test_every_nth_pull_is_full_where_configured(transport: str, tmp_path: Path) -> None:
    async def body(trainer: Trainer, one: Receiver) -> None:
        engine = trainer.engine()
        modes = [(await sync(one, trainer, trainer.step(), engine)).mode for _ in range(7)]
        assert modes == ["full", "delta", "delta", "full", "delta", "delta", "full"]

    run(transport, tmp_path, body, interval=2)


def test_a_late_joiner_gets_a_full_version_then_deltas(transport: str, tmp_path: Path) -> None:
    async def body(trainer: Trainer, one: Receiver) -> None:
        for _ in range(3):
            trainer.step()
        engine = trainer.engine()
        assert (await sync(one, trainer, trainer.step(), engine)).mode == "full"
        assert (await sync(one, trainer, trainer.step(), engine)).mode == "delta"

    run(transport, tmp_path, body)


def test_a_rolled_back_delta_leaves_the_version_before_and_costs_a_full_one(transport: str, tmp_path: Path) -> None:
    async def body(trainer: Trainer, one: Receiver) -> None:
        engine = trainer.engine()
        before = trainer.step()
        await sync(one, trainer, before, engine)
        payload = await one.pull(trainer.endpoint, trainer.step())
        payload.apply(engine)
        payload.rollback()
        assert digest_of(engine, before) == before.digest
        assert (await sync(one, trainer, trainer.step(), engine)).mode == "full"

    run(transport, tmp_path, body)


def test_an_engine_that_was_changed_behind_our_back_is_found_out(transport: str, tmp_path: Path) -> None:
    """The base is not what was proven: the result is not either, and the delta is undone."""

    async def body(trainer: Trainer, one: Receiver) -> None:
        engine = trainer.engine()
        await sync(one, trainer, trainer.step(), engine)
        engine["w"].view(torch.int16)[0, 0] ^= 1
        spoilt = {name: weight.clone() for name, weight in engine.items()}
        manifest = trainer.step(0.0001)
        payload = await one.pull(trainer.endpoint, manifest)
        assert payload.mode == "delta"
        with pytest.raises(WeightError, match=r"applied \(delta\): 1 of 6 tensors, the first is w; rolled back"):
            payload.apply(engine)
        for name, weight in spoilt.items():
            assert torch.equal(engine[name].view(torch.int16), weight.view(torch.int16))
        assert (await sync(one, trainer, manifest, engine)).mode == "full"

    run(transport, tmp_path, body)


def test_a_bit_flipped_in_flight_is_found_and_the_full_version_comes(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Flipping:
        def __init__(self, *args: Any) -> None:
            self._fetch = open_fetch(*args)
            self._into = args[2]

        def run(self) -> bool:
            complete = self._fetch.run()
            if flips:
                self._into[flips.pop() % len(self._into)] ^= 4
            return complete

        def cancel(self) -> None:
            self._fetch.cancel()

    flips: list[int] = []
    monkeypatch.setattr(receiver, "open_fetch", Flipping)
    monkeypatch.setattr(receiver, "INLINE_MAX", 0)  # over streams, however short

    async def body(trainer: Trainer, one: Receiver) -> None:
        engine = trainer.engine()
        await sync(one, trainer, trainer.step(), engine)
        for place in (0, 8, 400, 1000, 2**20 + 17):
            flips.append(place)
            assert (await sync(one, trainer, trainer.step(), engine)).mode == "full"
        assert one.policy.full_because["broken"] == 5
        assert (await sync(one, trainer, trainer.step(), engine)).mode == "delta"

    run(transport, tmp_path, body)


def test_a_delta_in_a_reply_is_checked_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = SenderClient.request_transfer

    async def flipped(self: SenderClient, request: TransferRequest, timeout: float = 60.0) -> TransferReply:
        reply = await original(self, request, timeout)
        return msgspec.structs.replace(reply, data=reply.data[:-1] + bytes([reply.data[-1] ^ 1]) if reply.data else b"")

    async def body(trainer: Trainer, one: Receiver) -> None:
        engine = trainer.engine()
        await sync(one, trainer, trainer.step(), engine)
        assert (await sync(one, trainer, trainer.step(), engine)).mode == "delta"
        monkeypatch.setattr(SenderClient, "request_transfer", flipped)
        assert (await sync(one, trainer, trainer.step(), engine)).mode == "full"
        assert one.policy.full_because["broken"] == 1

    run("tcp", tmp_path, body)


def test_the_sender_lends_a_delta_only_on_its_base(transport: str, tmp_path: Path) -> None:
    """PROTOCOL: refused unless its base is have_version; the fall-back is named."""

    async def body(trainer: Trainer, one: Receiver) -> None:
        client = SenderClient(f"http://{trainer.endpoint}", TOKEN)
        register = RegisterReceiverRequest(
            sglang_http_host="h",
            sglang_http_port=1,
            transport=transport,  # type: ignore[arg-type]
        )
        await client.register(register)
        trainer.step()
        capabilities = await client.capabilities()
        assert (capabilities["strategies"], capabilities["delta_ready"]) == (["full", "delta"], False)
        manifest = trainer.step()
        assert manifest.base is None  # digested before its delta was made
        capabilities = await client.capabilities()
        assert capabilities["delta_ready"]
        assert capabilities["delta_base_version"] == 0
        assert 0.99 < capabilities["delta_sparsity"] < 1
        request = TransferRequest(instance_id="h:1", mode="delta", have_version=0, version=1)
        reply = await client.request_transfer(request)
        assert (reply.ok, reply.mode, reply.version) == (True, "delta", 1)
        assert reply.bytes == capabilities["delta_size_bytes"]
        held = await client.manifest(1)
        assert (held.base, held.delta_digest, held.digest) == (0, reply.digest, manifest.digest)
        refused = await client.request_transfer(msgspec.structs.replace(request, have_version=7))
        assert (refused.ok, refused.fallback, refused.reason) == (False, "full", "base_mismatch")
        trainer.step(0.9)
        refused = await client.request_transfer(msgspec.structs.replace(request, have_version=1, version=2))
        assert (refused.ok, refused.fallback, refused.reason) == (False, "full", "delta_not_ready")
        await client.close()

    run(transport, tmp_path, body)


def test_wait_delta_ready_says_whether_there_is_one(tmp_path: Path) -> None:
    trainer = Trainer("tcp", tmp_path)
    reasons = []
    for share in (0.0, 0.005, 0.9):
        trainer.step(share)
        report = trainer.manager.delta_report(trainer.version)
        assert report is not None
        assert trainer.manager.wait_delta_ready() == (report.base is not None)
        reasons.append(report.reason)
    assert reasons == ["no_base", "", "too_long"]
    trainer.manager.shutdown()
