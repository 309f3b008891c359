"""What is measured, each against its yardstick in the same run. Sizes are bytes of the bfloat16 version."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from astraflow.core.protocol import SenderClient
from astraflow.core.protocol.messages import RegisterReceiverRequest, TransferRequest
from astraflow.core.weight_manager.bench.link import SlowLink
from astraflow.core.weight_manager.bench.peers import best, memcpy_s, plain_transfer_s
from astraflow.core.weight_manager.bench.versions import (
    Pair,
    change,
    make_pair,
    normal_weights,
    to_bfloat16,
    transformer_layout,
)
from astraflow.core.weight_manager.delta import DeltaReader, encode_delta
from astraflow.core.weight_manager.digest import differing, tensor_digest
from astraflow.core.weight_manager.handover import BufferHandover
from astraflow.core.weight_manager.policy import Strategy
from astraflow.core.weight_manager.publish import WeightManager
from astraflow.core.weight_manager.receiver import Receiver
from astraflow.core.weight_manager.segment import anonymous_file, path_of
from astraflow.core.weight_manager.tensors import wire_view
from astraflow.core.weight_manager.transports.tcp import REQUEST, STREAMS

TOKEN = "bench"
RATE, ROUND_TRIP_S = 0.5e9, 0.03
"""The emulated slow line: bytes a second, seconds."""
RECEIVERS = 7
"""Beside one that stalls."""
FAN_OUT_BYTES = 64 * 2**20
"""Size of the version that many receivers pull at once."""


class CodecFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A delta made and taken, at one density."""

    density: float
    changed: int
    delta_bytes: int
    bytes_per_change: float
    encode_gb_s: float
    """Compare and encode, in gigabytes of model a second."""
    verify_apply_gb_s: float
    """Digest the file, decode, overwrite, digest the result; gigabytes of model a second."""
    swap_ms: float
    """The part of it that stops generation: overwrite and digest the result."""


class PublishFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer waits for."""

    copy_s: float
    """From float32 parameters to bfloat16 in shared memory."""
    memcpy_s: float
    """Of its float32 parameters."""
    blocked_ratio: float


class TransferFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A full version over loopback."""

    pull_s: float
    plain_s: float
    share_of_plain: float
    """Speed relative to a plain sendfile peer with as many streams."""
    streams: int


class LinkFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Publish to served, over the emulated line."""

    full_s: float
    delta_s: float
    delta_share: float
    density: float


class FanOutFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Several receivers at once, until the last of them has its version."""

    alone_s: float
    beside_a_stalled_one_s: float
    ratio: float
    receivers: int


class MemoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks, in multiples of the model."""

    sender: float
    """The agent's, both halves of the buffer and the deltas included."""
    receiver: float
    """Beyond the engine."""


def codec(pair: Pair) -> CodecFigures:
    """Make and take a delta, each several times; the best time counts."""
    file = memoryview(b"")
    changed = 0

    def encode() -> float:
        nonlocal file, changed
        started = time.perf_counter()
        delta = encode_delta(pair.base, pair.target, pair.before, pair.after)
        seconds = time.perf_counter() - started
        assert delta is not None
        file, changed = memoryview(b"".join(delta.parts)), delta.changed
        return seconds

    encode_s = best(encode)
    engine = np.frombuffer(pair.before, np.uint8).copy()
    weights = {entry.name: engine[entry.offset : entry.offset + entry.nbytes] for entry in pair.target.tensors}
    swaps: list[float] = []

    def take() -> float:
        engine[:] = pair.before
        started = time.perf_counter()
        tensor_digest(file)
        changes = list(DeltaReader(file).changes())
        swapping = time.perf_counter()
        handover = BufferHandover(weights)
        handover.overwrite(pair.target, changes)
        wrong = differing(pair.target, handover.digests(pair.target))
        ended = time.perf_counter()
        assert not wrong
        swaps.append(ended - swapping)
        return ended - started

    take_s = best(take)
    return CodecFigures(
        density=pair.changed / (pair.nbytes // 2),
        changed=pair.changed,
        delta_bytes=len(file),
        bytes_per_change=len(file) / changed if changed else 0.0,
        encode_gb_s=pair.nbytes / encode_s / 1e9,
        verify_apply_gb_s=pair.nbytes / take_s / 1e9,
        swap_ms=min(swaps) * 1e3,
    )


class Trainer:
    """float32 parameters of about `nbytes` on a bfloat16 wire, published by a real manager and agent."""

    def __init__(self, nbytes: int, strategy: Strategy) -> None:
        wire = transformer_layout(nbytes)
        self._layout = transformer_layout(nbytes * 2, "float32")[: len(wire)]
        self.values = normal_weights(self._layout)
        self.bits = to_bfloat16(self.values)
        self._to_values()
        buffer = memoryview(self.values.view(np.uint8).data)
        self.params = {entry.name: wire_view(entry, buffer) for entry in self._layout}
        self.manager = WeightManager("bench", TOKEN, transports=("tcp",), wire_dtype="bfloat16", strategy=strategy)
        self.manager.initialize(self.params)
        self.endpoint = self.manager.get_sender_endpoint()
        self.version = -1

    def step(self, density: float) -> None:
        """Change parameters as an optimiser would."""
        change(self.bits, density, seed=self.version + 2)
        self._to_values()

    def publish(self) -> float:
        """Seconds that the trainer is blocked."""
        self.version += 1
        return self.manager.offload(self.params, self.version)["copy_s"]

    def engine(self) -> dict[str, np.ndarray]:
        """Weights to be overwritten; their pages are there, so that they do not count as a receiver's."""
        return {entry.name: np.ones(entry.nbytes // 4, np.uint16) for entry in self._layout}

    def _to_values(self) -> None:
        bits = self.values.view(np.uint32)
        bits[:] = self.bits
        bits <<= 16


def publish(nbytes: int) -> PublishFigures:
    trainer = Trainer(nbytes, "full")
    try:
        copy_s = best(trainer.publish, 6)
    finally:
        trainer.manager.shutdown()
    plain = memcpy_s(trainer.values.nbytes)
    return PublishFigures(copy_s=copy_s, memcpy_s=plain, blocked_ratio=copy_s / plain)


def transfer(nbytes: int) -> TransferFigures:
    """Pull a full version several times, and move the same bytes with the plain peer, in turn."""
    trainer = Trainer(nbytes, "full")
    trainer.publish()
    manifest = trainer.manager.manifest(0)
    fd = anonymous_file("astraflow-bench")
    staging = np.zeros(manifest.nbytes, np.uint8)
    with open(fd, "wb") as file:
        file.write(trainer.bits[: manifest.nbytes // 2].data)  # other paddings than the version's, the same length
        file.flush()

        async def measure() -> tuple[float, float]:
            receiver = Receiver("127.0.0.1", 1, TOKEN)
            pulls, plains = [], []
            for _ in range(5):
                payload = await receiver.pull(trainer.endpoint, manifest)
                pulls.append(payload.timing["pull_s"])
                payload.release()
                view = memoryview(staging.data)
                plains.append(await asyncio.to_thread(plain_transfer_s, path_of(fd), 0, manifest.nbytes, view, STREAMS))
            await receiver.close()
            return min(pulls), min(plains)

        try:
            pull_s, plain_s = asyncio.run(measure())
        finally:
            trainer.manager.shutdown()
    return TransferFigures(pull_s=pull_s, plain_s=plain_s, share_of_plain=plain_s / pull_s, streams=STREAMS)


def over_a_slow_line(nbytes: int, density: float) -> LinkFigures:
    """Publish, pull, verify, apply, prove: from the trainer's call to the engine that may serve."""
    full_s = _publish_to_served(nbytes, density, "full")
    delta_s = _publish_to_served(nbytes, density, "delta")
    return LinkFigures(full_s=full_s, delta_s=delta_s, delta_share=delta_s / full_s, density=density)


def _publish_to_served(nbytes: int, density: float, strategy: Strategy, rounds: int = 3) -> float:
    trainer = Trainer(nbytes, strategy)
    link = SlowLink(RATE, ROUND_TRIP_S)
    engine = trainer.engine()

    async def measure() -> list[float]:
        receiver = Receiver("127.0.0.1", 1, TOKEN, strategy=strategy, reach=link.reach)
        seconds = []
        for number in range(rounds + 1):
            started = time.perf_counter()
            trainer.publish()
            payload = await receiver.pull(trainer.endpoint, trainer.manager.manifest(trainer.version))
            payload.apply(engine)
            seconds.append(time.perf_counter() - started)
            assert payload.mode == (strategy if number else "full")
            payload.release()
            trainer.step(density)
        await receiver.close()
        return seconds[1:]

    try:
        return min(asyncio.run(measure()))
    finally:
        link.close()
        trainer.manager.shutdown()


def fan_out(nbytes: int = FAN_OUT_BYTES) -> FanOutFigures:
    """Receivers at once, alone and beside one that asked for everything and reads nothing."""
    trainer = Trainer(nbytes, "full")
    trainer.publish()
    manifest = trainer.manager.manifest(0)

    async def measure() -> tuple[float, float]:
        receivers = [Receiver("127.0.0.1", 10 + i, TOKEN) for i in range(RECEIVERS)]

        async def once() -> float:
            started = time.perf_counter()
            payloads = await asyncio.gather(*(r.pull(trainer.endpoint, manifest) for r in receivers))
            seconds = time.perf_counter() - started
            for payload in payloads:
                payload.release()
            return seconds

        alone = min([await once() for _ in range(4)][1:])
        stalled = await _stall(trainer)
        beside = min([await once() for _ in range(3)])
        stalled.close()
        for receiver in receivers:
            await receiver.close()
        return alone, beside

    try:
        alone, beside = asyncio.run(measure())
    finally:
        trainer.manager.shutdown()
    return FanOutFigures(alone_s=alone, beside_a_stalled_one_s=beside, ratio=beside / alone, receivers=RECEIVERS)


async def _stall(trainer: Trainer) -> socket.socket:
    client = SenderClient(f"http://{trainer.endpoint}", TOKEN)
    registered = await client.register(RegisterReceiverRequest(sglang_http_host="stalled", sglang_http_port=1))
    granted = await client.request_transfer(TransferRequest(instance_id="stalled:1"))
    await client.close()
    connection = socket.create_connection(("127.0.0.1", registered.trainer_rpc_port))
    connection.sendall(REQUEST.pack(bytes.fromhex(granted.ticket), 0, granted.bytes))
    return connection


def memory(nbytes: int, density: float) -> MemoryFigures:
    """Peaks while versions are published and pulled as deltas and in full."""
    trainer = Trainer(nbytes, "delta")
    engine = trainer.engine()
    model = sum(held.nbytes for held in engine.values())

    async def measure() -> float:
        receiver = Receiver("127.0.0.1", 1, TOKEN, strategy="delta", full_sync_interval=2)
        before, peak = _status("VmRSS"), 0
        for _ in range(4):
            trainer.publish()
            trainer.manager.wait_delta_ready()
            _reset_peak()
            payload = await receiver.pull(trainer.endpoint, trainer.manager.manifest(trainer.version))
            payload.apply(engine)
            payload.release()
            peak = max(peak, _status("VmHWM"))
            trainer.step(density)
        await receiver.close()
        return (peak - before) / model

    try:
        # ours holds the receiver and the trainer; what publishing maps of the double buffer is not the receiver's
        receiver = asyncio.run(measure())
        reports = [trainer.manager.delta_report(version) for version in range(trainer.version + 1)]
        deltas = sum(report.bytes for report in reports if report is not None)
        sender = (_status("VmHWM", trainer.manager.agent_pid) + deltas) / model
    finally:
        trainer.manager.shutdown()
    return MemoryFigures(sender=sender, receiver=receiver)


def _status(field: str, pid: int | str = "self") -> int:
    """A memory field of /proc in bytes."""
    with open(f"/proc/{pid}/status") as file:
        line = next(line for line in file if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def measure_all(nbytes: int, densities: Sequence[float], progress: Any) -> dict[str, Any]:
    """Everything, in JSON's types; `progress` is told each figure as it comes."""
    results: dict[str, Any] = {"bytes": nbytes, "memcpy_gb_s": nbytes / memcpy_s(nbytes) / 1e9}
    progress(f"{nbytes / 1e6:.0f} MB of bfloat16; memory copies {results['memcpy_gb_s']:.1f} GB/s")
    results["codec"] = []
    for density in densities:
        figures = codec(make_pair(nbytes, density))
        results["codec"].append(msgspec.to_builtins(figures))
        progress(
            f"density {100 * figures.density:.2f}%: diff+encode {figures.encode_gb_s:.1f} GB/s, "
            f"{figures.bytes_per_change:.2f} bytes a change ({figures.delta_bytes / 1e6:.2f} MB), "
            f"verify+apply {figures.verify_apply_gb_s:.1f} GB/s, swap {figures.swap_ms:.0f} ms"
        )
    for name, figure in (
        ("publish", lambda: publish(nbytes)),
        ("transfer", lambda: transfer(nbytes)),
        ("link", lambda: over_a_slow_line(nbytes, densities[0])),
        ("fan_out", fan_out),
        ("memory", lambda: memory(nbytes, densities[0])),
    ):
        results[name] = msgspec.to_builtins(figure())
        progress(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in results[name].items()))
    return results
