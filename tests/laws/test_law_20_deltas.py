"""LAW 20. A delta on another base is refused; a chain of deltas equals the full version bitwise.

Here: what may go wrong between two versions, with a real sender agent. Each fault is detected or healed, nothing is
ever served that was not proven, and clean syncs never alarm. (Chains: tests/contracts/test_delta_sync.py; files:
tests/core/weight_manager/delta.)
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from astraflow.core.data import Manifest
from astraflow.core.protocol import SenderClient
from astraflow.core.protocol.messages import RegisterReceiverRequest, TransferRequest
from astraflow.core.weight_manager import WeightManager
from astraflow.core.weight_manager.delta import Change
from astraflow.core.weight_manager.handover import digest_of
from astraflow.core.weight_manager.payload import Payload
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.core.weight_manager.tensors import TensorHandover
from astraflow.core.weight_manager.transports import TRANSPORTS
from astraflow.core.weight_manager.transports.tcp import REQUEST
from astraflow.errors import PeerError, WeightError

TOKEN = "secret"
CLEAN_PUBLISHES = 270
"""Each is synced over three transports; with the full ones of law 18 more than 1,000 clean syncs."""


class Trainer:
    """bfloat16 parameters, some of them tied; a step changes about 1% of the elements."""

    def __init__(self, folder: Path, seed: int = 1, port: int = 0, transports: tuple[str, ...] = ("tcp",)) -> None:
        self.folder = folder / "versions"
        self._rng = torch.Generator().manual_seed(seed)
        self.params = {n: torch.randn(64, 64, generator=self._rng).bfloat16() for n in ("a", "b", "c")}
        self.params["tied"] = self.params["a"]
        self.manager = WeightManager(
            "model0",
            TOKEN,
            transports=transports,
            strategy="delta",
            port=port,
            folder=self.folder if "disk" in transports else None,
        )
        self.manager.initialize(self.params)
        self.endpoint = self.manager.get_sender_endpoint()
        self.version = -1

    def step(self, version: int | None = None) -> Manifest:
        for name in ("a", "b", "c"):
            chosen = torch.rand(64, 64, generator=self._rng) < 0.01
            self.params[name][chosen] += 1
        self.version = self.version + 1 if version is None else version
        self.manager.offload(self.params, self.version)
        self.manager.wait_delta_ready()
        return self.manager.manifest(self.version)

    def engine(self) -> dict[str, Tensor]:
        """An engine whose tied weights have storages of their own: each has to be filled."""
        return {name: torch.zeros_like(param) for name, param in self.params.items()}


Body = Callable[[Trainer, Receiver], Awaitable[None]]


def run(tmp_path: Path, body: Body, transport: str = "tcp") -> None:
    async def whole() -> None:
        trainer = Trainer(tmp_path, transports=(transport,))
        receiver = Receiver("127.0.0.1", 1, TOKEN, transport=transport, strategy="delta")
        try:
            await body(trainer, receiver)
        finally:
            await receiver.close()
            trainer.manager.shutdown()

    asyncio.run(whole())


async def sync(receiver: Receiver, endpoint: str, manifest: Manifest, engine: Mapping[str, Tensor]) -> Payload:
    payload = await receiver.pull(endpoint, manifest)
    payload.apply(engine)
    payload.release()
    assert digest_of(engine, manifest) == manifest.digest
    return payload


def test_clean_syncs_never_alarm(tmp_path: Path) -> None:
    async def body() -> None:
        trainer = Trainer(tmp_path, transports=tuple(TRANSPORTS))
        receivers = [
            Receiver("127.0.0.1", number, TOKEN, transport=name, strategy="delta", full_sync_interval=50)
            for number, name in enumerate(TRANSPORTS)
        ]
        engines = [trainer.engine() for _ in receivers]
        modes: list[str] = []
        for _ in range(CLEAN_PUBLISHES):
            manifest = trainer.step()
            for receiver, engine in zip(receivers, engines, strict=True):
                payload = await sync(receiver, trainer.endpoint, manifest, engine)
                assert payload.broken == 0
                modes.append(payload.mode)
        for receiver in receivers:
            full = 1 + (CLEAN_PUBLISHES - 1) // 51
            assert receiver.policy.full_because == {"no_proven_base": 1, "full_sync_interval": full - 1}
            await receiver.close()
        assert modes.count("delta") == 3 * (CLEAN_PUBLISHES - full)
        trainer.manager.shutdown()

    asyncio.run(body())


# ---- in the engine ---------------------------------------------------------------------------------------------------


class DoesNothing(TensorHandover):
    """Says yes to everything."""

    def overwrite(self, manifest: Manifest, changes: Iterable[Change]) -> None:
        pass


class SwapsTwoTensors(TensorHandover):
    def overwrite(self, manifest: Manifest, changes: Iterable[Change]) -> None:
        super().overwrite(
            manifest, [Change({0: 1, 1: 0}.get(c.index, c.index), c.positions, c.values) for c in changes]
        )


class MissesTheTiedAlias(TensorHandover):
    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__({name: weight for name, weight in weights.items() if name != "tied"})
        self._true = TensorHandover(weights)

    def digests(self, manifest: Manifest) -> tuple[str, ...]:
        return self._true.digests(manifest)


class DropsTheLastChange(TensorHandover):
    def overwrite(self, manifest: Manifest, changes: Iterable[Change]) -> None:
        super().overwrite(manifest, list(changes)[:-1])


class DiesHalfway(TensorHandover):
    def overwrite(self, manifest: Manifest, changes: Iterable[Change]) -> None:
        def some() -> Iterable[Change]:
            yield from list(changes)[:2]
            raise RuntimeError("device lost")

        super().overwrite(manifest, some())


FAULTY = [DoesNothing, SwapsTwoTensors, MissesTheTiedAlias, DropsTheLastChange, DiesHalfway]


@pytest.mark.parametrize("faulty", FAULTY)
def test_an_engine_that_takes_a_delta_wrongly_is_found_out_undone_and_healed(
    faulty: type[TensorHandover], tmp_path: Path
) -> None:
    async def body(trainer: Trainer, receiver: Receiver) -> None:
        engine = trainer.engine()
        await sync(receiver, trainer.endpoint, trainer.step(), engine)
        before = {name: weight.clone() for name, weight in engine.items()}
        manifest = trainer.step()
        payload = await receiver.pull(trainer.endpoint, manifest)
        assert payload.mode == "delta"
        with pytest.raises(WeightError, match=r"version 1 .*(rolled back|device lost)"):
            payload.apply(faulty(engine))
        for name, weight in engine.items():
            assert torch.equal(weight, before[name]), name
        assert (await sync(receiver, trainer.endpoint, manifest, engine)).mode == "full"

    run(tmp_path, body)


def test_an_engine_of_another_dtype_is_refused_before_anything_changes(tmp_path: Path) -> None:
    async def body(trainer: Trainer, receiver: Receiver) -> None:
        await sync(receiver, trainer.endpoint, trainer.step(), trainer.engine())
        payload = await receiver.pull(trainer.endpoint, trainer.step())
        halves = {name: weight.half() for name, weight in trainer.engine().items()}
        with pytest.raises(WeightError, match="a is float16 in the engine, which cannot hold bfloat16 exactly"):
            payload.apply(halves)
        assert not any(weight.any() for weight in halves.values())

    run(tmp_path, body)


# ---- between versions ------------------------------------------------------------------------------------------------


def test_dropped_syncs_are_caught_up(tmp_path: Path) -> None:
    async def body(trainer: Trainer, receiver: Receiver) -> None:
        engine = trainer.engine()
        await sync(receiver, trainer.endpoint, trainer.step(), engine)
        dropped = [trainer.step() for _ in range(2)]
        assert digest_of(engine, dropped[-1]) != dropped[-1].digest
        assert (await sync(receiver, trainer.endpoint, trainer.step(), engine)).mode == "delta"

    run(tmp_path, body)


def test_a_base_of_the_same_number_and_other_bytes_is_refused(tmp_path: Path) -> None:
    """A sender that was restarted without its past says 0, 1 again: its delta is not on what the engine holds."""

    async def body(trainer: Trainer, receiver: Receiver) -> None:
        engine = trainer.engine()
        await sync(receiver, trainer.endpoint, trainer.step(), engine)
        port = int(trainer.endpoint.rpartition(":")[2])
        trainer.manager.shutdown()
        other = Trainer(tmp_path / "other", seed=2, port=port)
        other.step()
        assert (await sync(receiver, other.endpoint, other.step(), engine)).mode == "full"
        assert receiver.policy.full_because["broken"] == 1
        assert (await sync(receiver, other.endpoint, other.step(), engine)).mode == "delta"
        other.manager.shutdown()

    run(tmp_path, body)


def test_a_sender_restarted_at_an_older_version_is_refused_and_the_engine_stays(tmp_path: Path) -> None:
    async def body(trainer: Trainer, receiver: Receiver) -> None:
        engine = trainer.engine()
        held = trainer.step(7)
        await sync(receiver, trainer.endpoint, held, engine)
        promised = trainer.step(8)
        port = int(trainer.endpoint.rpartition(":")[2])
        trainer.manager.shutdown()
        old = Trainer(tmp_path / "old", port=port)
        old.step(3)
        with pytest.raises(WeightError, match="does not have version 8 of model0; its newest is 3"):
            await receiver.pull(old.endpoint, promised)
        assert digest_of(engine, held) == held.digest
        old.manager.shutdown()

    run(tmp_path, body)


def test_concurrent_pulls_are_served_one_after_the_other_and_right(tmp_path: Path) -> None:
    async def body(trainer: Trainer, receiver: Receiver) -> None:
        engine = trainer.engine()
        await sync(receiver, trainer.endpoint, trainer.step(), engine)
        manifest = trainer.step()
        payloads = await asyncio.gather(*(receiver.pull(trainer.endpoint, manifest) for _ in range(2)))
        for payload in payloads:  # overwriting twice is harmless
            payload.apply(engine)
            assert digest_of(engine, manifest) == manifest.digest

    run(tmp_path, body)


# ---- on the way ------------------------------------------------------------------------------------------------------


async def ticket(trainer: Trainer) -> tuple[int, bytes]:
    """A grant of the newest version in full: the port of the streams and the ticket."""
    client = SenderClient(f"http://{trainer.endpoint}", TOKEN)
    try:
        registered = await client.register(RegisterReceiverRequest(sglang_http_host="raw", sglang_http_port=1))
        granted = await client.request_transfer(TransferRequest(instance_id="raw:1"))
    finally:
        await client.close()
    return registered.trainer_rpc_port, REQUEST.pack(bytes.fromhex(granted.ticket), 0, granted.bytes)


def test_receivers_that_die_in_the_middle_or_stall_disturb_nobody(tmp_path: Path) -> None:
    async def body(trainer: Trainer, receiver: Receiver) -> None:
        trainer.step()
        stalled = []
        for number in range(6):
            port, request = await ticket(trainer)
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(request)
            if number % 2:
                connection.recv(100)
                # as the kernel does for a killed process: the rest is refused with a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
            else:
                stalled.append(connection)
        engine = trainer.engine()
        manifest = trainer.step()
        others = [Receiver("127.0.0.1", 50 + i, TOKEN) for i in range(7)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(other.pull(trainer.endpoint, manifest) for other in others))
            await sync(receiver, trainer.endpoint, manifest, engine)
        for connection in stalled:
            connection.close()
        for other in others:
            await other.close()

    run(tmp_path, body)


def test_a_half_written_delta_on_disk_is_refused_and_the_full_version_comes(tmp_path: Path) -> None:
    async def body(trainer: Trainer, receiver: Receiver) -> None:
        engine = trainer.engine()
        await sync(receiver, trainer.endpoint, trainer.step(), engine)
        manifest = trainer.step()
        path = trainer.folder / "v00000001" / "delta.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
        assert (await sync(receiver, trainer.endpoint, manifest, engine)).mode == "full"

    run(tmp_path, body, "disk")


def test_a_half_written_version_on_disk_is_never_applied(tmp_path: Path) -> None:
    async def body(trainer: Trainer, receiver: Receiver) -> None:
        engine = trainer.engine()
        manifest = trainer.step()
        path = trainer.folder / "v00000000" / "weights.bin"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(PeerError, match="it is not all of the version"):
            await receiver.pull(trainer.endpoint, manifest)
        path.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
        with pytest.raises(WeightError, match="arrived broken 2 times"):
            await receiver.pull(trainer.endpoint, manifest)
        path.write_bytes(whole)
        await sync(receiver, trainer.endpoint, manifest, engine)

    run(tmp_path, body, "disk")
