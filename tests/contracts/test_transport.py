"""What every weight transport must do. The same tests run on each: the transport alone, then agent and receiver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.core.protocol.messages import RegisterReceiverRequest
from astraflow.core.weight_manager import WeightManager
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.core.weight_manager.segment import DoubleBuffer, path_of
from astraflow.core.weight_manager.sender_state import SenderState
from astraflow.core.weight_manager.transports import TRANSPORTS, Bulk, Grant, disk, open_fetch, shm, tcp
from astraflow.errors import AstraFlowError, CallerError, DeadlineError, UnknownNameError, WeightError

TOKEN = "secret"
VERSION = 7
TICKET = bytes(range(16))
LIVE = ("shm", "tcp")
"""Transports that read the double buffer itself; files on a disk are never overwritten."""

Lend = Callable[[bytes], tuple[Grant, DoubleBuffer]]


@pytest.fixture(params=sorted(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lend]:
    """Publish bytes as VERSION in half 0 of a segment and serve them; chunks are small, so that there are many."""
    monkeypatch.setattr(shm, "CHUNK", 1000)
    monkeypatch.setattr(disk, "CHUNK", 1000)
    monkeypatch.setattr(tcp, "CHUNK", 1000)
    monkeypatch.setattr(tcp, "STREAM_MIN", 4000)
    with ExitStack() as stack:

        def publish(data: bytes) -> tuple[Grant, DoubleBuffer]:
            buffer = DoubleBuffer.create(len(data))
            stack.callback(buffer.close)
            buffer.half(0)[:] = data
            buffer.finish(0, VERSION)
            bulk = Bulk(buffer.fd, buffer.offset(0), len(data), lambda: buffer.version_in(0) == VERSION)
            server = tcp.BulkServer("127.0.0.1", lambda ticket: bulk if ticket == TICKET else None)
            server.start()
            stack.callback(server.close)
            grant = Grant(
                host="127.0.0.1",
                version=VERSION,
                length=len(data),
                port=server.port,
                ticket=TICKET,
                path=path_of(buffer.fd),
                offset=buffer.offset(0),
            )
            return grant, buffer

        yield publish


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize("length", [0, 1, 999, 1000, 1001, 8001, 100_003])
def test_bytes_arrive_as_they_were(transport: str, lend: Lend, length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    grant, _ = lend(data)
    into = bytearray(length)
    assert open_fetch(transport, grant, memoryview(into), soon()).run()
    assert into == data


@pytest.mark.parametrize("transport", LIVE)
def test_an_overwritten_version_is_cut_off(transport: str, lend: Lend) -> None:
    grant, buffer = lend(bytes(10_000))
    buffer.begin(0)
    assert not open_fetch(transport, grant, memoryview(bytearray(10_000)), soon()).run()
    buffer.finish(0, VERSION + 2)
    assert not open_fetch(transport, grant, memoryview(bytearray(10_000)), soon()).run()


@pytest.mark.parametrize("transport", LIVE)
@pytest.mark.parametrize("look", range(1, 6))
def test_a_version_overwritten_while_it_is_read_is_cut_off(
    transport: str, lend: Lend, look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in the transfer the trainer begins to overwrite, up to the last look, nothing is called complete."""
    grant, buffer = lend(bytes(3000))
    looks = 0

    def version_in(_: DoubleBuffer, half: int) -> int:
        nonlocal looks
        looks += 1
        if looks == look:
            buffer.begin(half)
        return original(buffer, half)

    original = DoubleBuffer.version_in
    monkeypatch.setattr(DoubleBuffer, "version_in", version_in)
    monkeypatch.setattr(shm, "read_mark", lambda fd, offset: version_in(buffer, 0))
    complete = open_fetch(transport, grant, memoryview(bytearray(3000)), soon()).run()
    assert complete == (looks < look)
    assert not complete or look == 5


def test_a_passed_deadline_ends_a_fetch(transport: str, lend: Lend) -> None:
    grant, _ = lend(bytes(100_000))
    with pytest.raises(DeadlineError):
        open_fetch(transport, grant, memoryview(bytearray(100_000)), time.monotonic() - 1).run()


def test_a_cancelled_fetch_ends(transport: str, lend: Lend) -> None:
    grant, _ = lend(bytes(100_000))
    fetch = open_fetch(transport, grant, memoryview(bytearray(100_000)), soon())
    fetch.cancel()
    with pytest.raises(AstraFlowError):
        fetch.run()


def test_an_unknown_transport_names_the_known_ones(lend: Lend) -> None:
    grant, _ = lend(b"x")
    with pytest.raises(UnknownNameError, match=r"known: disk, shm, tcp"):
        open_fetch("carrier_pigeon", grant, memoryview(bytearray(1)), soon())


# ---- agent and receiver ----------------------------------------------------------------------------------------------


def parameters(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (257, 129), "odd": (7,), "scalar": (), "empty": (0, 4), "one": (1,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def engine_of(params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(param) for name, param in params.items()}


class Trainer:
    """One real sender agent for the tests of this module; each publish takes the next number."""

    def __init__(self, folder: Path) -> None:
        self.manager = WeightManager(
            "model0", TOKEN, wire_dtype="bfloat16", transports=("tcp", "shm", "disk"), folder=folder
        )
        self.manager.initialize(parameters(0))
        self.version = -1

    def publish(self) -> int:
        self.version += 1
        self.manager.offload(parameters(self.version), self.version)
        return self.version

    @property
    def endpoint(self) -> str:
        return self.manager.get_sender_endpoint()


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    trainer = Trainer(tmp_path_factory.mktemp("versions"))
    yield trainer
    trainer.manager.shutdown()


def test_an_engine_holds_what_was_published_and_proves_it(transport: str, trainer: Trainer) -> None:
    async def body() -> None:
        receiver = Receiver("127.0.0.1", 1, TOKEN, transport=transport)
        engine = engine_of(parameters(0))
        for _ in range(5):
            version = trainer.publish()
            payload = await receiver.pull(trainer.endpoint, trainer.manager.manifest(version))
            payload.apply(engine)
            payload.release()
            assert (payload.version, payload.mode, payload.broken) == (version, "full", 0)
            assert payload.timing.keys() == {"pull_s", "verify_s", "load_s"}
            for name, param in parameters(version).items():
                assert torch.equal(engine[name], param.bfloat16().float())
        await receiver.close()

    asyncio.run(body())


def test_the_version_before_the_newest_can_still_be_pulled(transport: str, trainer: Trainer) -> None:
    async def body() -> None:
        receiver = Receiver("127.0.0.1", 2, TOKEN, transport=transport)
        before = trainer.publish()
        newest = trainer.publish()
        trainer.manager.manifest(newest)
        payload = await receiver.pull(trainer.endpoint, trainer.manager.manifest(before))
        assert payload.version == before
        await receiver.close()

    asyncio.run(body())


def test_a_late_reader_gets_the_newest_instead(transport: str, trainer: Trainer) -> None:
    async def body() -> None:
        receiver = Receiver("127.0.0.1", 3, TOKEN, transport=transport)
        old = trainer.manager.manifest(trainer.publish())
        trainer.publish()
        newest = trainer.publish()  # into the half that held `old`; perhaps not digested yet
        payload = await receiver.pull(trainer.endpoint, old)
        payload.apply(engine_of(parameters(0)))
        assert payload.manifest == trainer.manager.manifest(payload.version)
        assert payload.version in (newest - 1, newest)
        await receiver.close()

    asyncio.run(body())


def test_publishing_never_waits_for_a_reader_that_stalls(transport: str, trainer: Trainer) -> None:
    async def body() -> None:
        receiver = Receiver("127.0.0.1", 4, TOKEN, transport=transport)
        pulls = []
        for _ in range(20):
            manifest = trainer.manager.manifest(trainer.publish())
            pulls.append(asyncio.create_task(receiver.pull(trainer.endpoint, manifest)))
            await asyncio.sleep(0)
        for payload in await asyncio.gather(*pulls):
            payload.apply(engine_of(parameters(0)))  # each is whole and proven, whatever it was cut off from
        await receiver.close()

    asyncio.run(body())


def sender(transport: str, folder: Path, **options: Any) -> WeightManager:
    return WeightManager(
        "model0", TOKEN, transports=(transport,), folder=folder if transport == "disk" else None, **options
    )


def test_many_receivers_are_served_at_once(transport: str, trainer: Trainer) -> None:
    async def body() -> None:
        manifest = trainer.manager.manifest(trainer.publish())
        receivers = [Receiver("127.0.0.1", 100 + i, TOKEN, transport=transport) for i in range(8)]
        payloads = await asyncio.gather(*(r.pull(trainer.endpoint, manifest) for r in receivers))
        assert {payload.version for payload in payloads} == {manifest.version}
        for receiver in receivers:
            await receiver.close()

    asyncio.run(body())


def test_a_cancelled_pull_leaves_the_receiver_usable(transport: str, trainer: Trainer) -> None:
    async def body() -> None:
        receiver = Receiver("127.0.0.1", 5, TOKEN, transport=transport)
        manifest = trainer.manager.manifest(trainer.publish())
        pull = asyncio.create_task(receiver.pull(trainer.endpoint, manifest))
        await asyncio.sleep(0)
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        (await receiver.pull(trainer.endpoint, manifest)).apply(engine_of(parameters(0)))
        await receiver.close()

    asyncio.run(body())


def test_a_restarted_sender_that_does_not_know_the_receiver_registers_it_again(transport: str, tmp_path: Path) -> None:
    async def body() -> None:
        receiver = Receiver("127.0.0.1", 6, TOKEN, transport=transport)
        port = 0
        for version in (3, 4):
            with sender(transport, tmp_path, port=port) as manager:
                manager.initialize(parameters(0))
                manager.offload(parameters(version), version)
                endpoint = manager.get_sender_endpoint()
                port = int(endpoint.rpartition(":")[2])
                payload = await receiver.pull(endpoint, manager.manifest(version))
                assert payload.version == version
        await receiver.close()

    asyncio.run(body())


def test_a_sender_restarted_at_an_older_version_is_refused(transport: str, trainer: Trainer, tmp_path: Path) -> None:
    async def body() -> None:
        receiver = Receiver("127.0.0.1", 7, TOKEN, transport=transport)
        trainer.publish()
        promised = trainer.manager.manifest(trainer.publish())
        with sender(transport, tmp_path, wire_dtype="bfloat16") as restarted:
            restarted.initialize(parameters(0))
            restarted.offload(parameters(0), 0)
            restarted.manifest(0)
            with pytest.raises(
                WeightError, match=f"does not have version {promised.version} of model0; its newest is 0"
            ):
                await receiver.pull(restarted.get_sender_endpoint(), promised)
        await receiver.close()

    asyncio.run(body())


def test_a_transport_that_is_not_served_is_refused(transport: str) -> None:
    other = next(name for name in TRANSPORTS if name != transport)
    buffer = DoubleBuffer.create(1)
    state = SenderState("model0", buffer, (), (other,))
    request = RegisterReceiverRequest(sglang_http_host="h", sglang_http_port=1, transport=transport)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match=f"transport {transport} is not served .* served: {other}"):
        state.register(request, "127.0.0.1", 1)
    buffer.close()
