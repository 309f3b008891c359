"""The weight sender agent: a process of its own beside each trainer, so that serving never takes the trainer's time.

Torch-free. It digests what the trainer published into shared memory, answers the control routes, serves the bytes, and
makes the delta from the version in the other half, for as long as that half is left alone.

    loop / thread     consumes           produces              waits for          ended by
    orders (thread)   stdin: Publish     SenderState, reports  the trainer        end of file: the trainer is gone
    reports (thread)  reports            stdout: Published …   the trainer        the process
    control (loop)    HTTP of receivers  grants                requests; a delta  orders
                                                               that is being made
    streams (threads) ranges by ticket   bytes                 receivers, ≤ 30 s  the process

Run by WeightManager as `python -m astraflow.core.weight_manager.sender_agent` (settings come through stdin).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from astraflow.core.data import Manifest
from astraflow.core.observability import log
from astraflow.core.protocol.http import Endpoint, StatusEndpoint, build_app
from astraflow.core.protocol.messages import (
    BufferInfo,
    ManifestRequest,
    RegisterReceiverReply,
    RegisterReceiverRequest,
    SenderCapabilities,
    SenderVersion,
    TransferReply,
    TransferRequest,
)
from astraflow.core.protocol.server import Server
from astraflow.core.weight_manager.agent_pipe import (
    DeltaMade,
    Failed,
    Listening,
    Publish,
    Published,
    Report,
    Settings,
    Superseded,
    pack,
    read_order,
)
from astraflow.core.weight_manager.delta import encode_delta
from astraflow.core.weight_manager.delta_store import DeltaStore, StoredDelta
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.segment import HALVES, WRITING, DoubleBuffer
from astraflow.core.weight_manager.sender_state import SenderState
from astraflow.core.weight_manager.transports.tcp import BulkServer
from astraflow.core.weight_manager.version_folder import VersionFolder
from astraflow.errors import AstraFlowError, InvariantError, WeightError, boundary

LOGGER = logging.getLogger("astraflow.sender_agent")
DELTA_WAIT_S = 10.0
"""Longest that a request for a delta waits for one that is being made."""
LAST_WORDS_S = 2.0
"""Longest that an agent which ends waits for its reports to be read."""


class SenderAgent:
    """The agent's parts, wired."""

    def __init__(self, settings: Settings, orders: BinaryIO, report_fd: int) -> None:
        self._settings = settings
        self._orders = orders
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        """None ends the thread that writes them."""
        self._report_fd = report_fd
        self._buffer = DoubleBuffer.attach(settings.segment_fd, settings.length)
        self._folder = None if settings.folder is None else VersionFolder(Path(settings.folder))
        in_memory = set(settings.transports) != {"disk"}
        self._deltas: DeltaStore | None = None
        if settings.deltas_kept:
            self._deltas = DeltaStore(settings.deltas_kept, settings.length, self._folder, in_memory)
        self._delta_settled = asyncio.Event()
        self._failure: AstraFlowError | None = None
        self.state = SenderState(
            settings.model_id,
            self._buffer,
            settings.layout,
            settings.transports,
            deltas=self._deltas,
            folder=self._folder,
        )
        self._streams = BulkServer(settings.host, self.state.bulk)
        app = build_app("weight sender agent", settings.token, self._routes())
        self._server = Server(app, settings.host, settings.port)

    async def serve(self) -> None:
        """Serve until the trainer is gone; raises what made it impossible to carry out an order."""
        loop = asyncio.get_running_loop()
        self._streams.start()
        self._reports.put(Listening(port=self._server.port, bulk_port=self._streams.port))
        reports = threading.Thread(target=self._tell, name="reports", daemon=True)
        reports.start()
        threading.Thread(target=self._follow, args=(loop,), name="orders", daemon=True).start()
        await self._server.serve()
        self._server.close()
        self._streams.close()
        if self._failure is not None:
            self._reports.put(Failed(reason=f"{self._failure.kind}: {self._failure}"))
            self._reports.put(None)
            reports.join(LAST_WORDS_S)
            raise self._failure

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Carry out the trainer's orders until the end of file; the agent's life ends with this thread."""
        try:
            with boundary(WeightError, "the sender agent"):
                while (order := read_order(self._orders)) is not None:
                    if not isinstance(order, Publish):
                        raise InvariantError(f"the agent was ordered a second {type(order).__name__}")
                    report = self._publish(order, loop)
                    self._reports.put(report)
                    if self._deltas is not None and isinstance(report, Published):
                        self._reports.put(self._make_delta(self._deltas, report.manifest, order.half, loop))
        except AstraFlowError as failure:
            self._failure = failure
        finally:
            loop.call_soon_threadsafe(self._server.stop)

    def _publish(self, order: Publish, loop: asyncio.AbstractEventLoop) -> Report:
        started = time.perf_counter()
        half = self._buffer.half(order.half)
        manifest = build_manifest(self._settings.model_id, order.version, self._settings.layout, half)
        manifest = msgspec.structs.replace(manifest, canaries=order.canaries, restored=order.restored).check()
        if self._folder is not None and self._buffer.version_in(order.half) == order.version:
            # overwritten meanwhile, it stays on disk unannounced until it is one too many
            self._folder.write_version(manifest, half)
        if self._buffer.version_in(order.half) != order.version:
            return Superseded(version=order.version)
        digest_s = time.perf_counter() - started
        asyncio.run_coroutine_threadsafe(self._register(manifest, order.half), loop).result()
        return Published(manifest=manifest, digest_s=digest_s)

    async def _register(self, manifest: Manifest, half: int) -> None:
        self.state.published(manifest, half)
        self.state.delta_pending = manifest.version if self._deltas is not None else None
        self._delta_settled.clear()

    def _make_delta(
        self, deltas: DeltaStore, target: Manifest, half: int, loop: asyncio.AbstractEventLoop
    ) -> DeltaMade:
        """Make the delta from the version in the other half, unless the trainer takes one of the halves meanwhile."""
        started = time.perf_counter()
        other = (half + 1) % HALVES
        base_version = self._buffer.version_in(other)
        stored: StoredDelta | None = None
        reason = "no_base"
        if base_version != WRITING and base_version in self.state.manifests:
            base = self.state.manifests[base_version]

            def untouched() -> bool:
                return (
                    self._buffer.version_in(other) == base_version and self._buffer.version_in(half) == target.version
                )

            encoded = encode_delta(
                base,
                target,
                self._buffer.half(other),
                self._buffer.half(half),
                limit=deltas.longest,
                proceed=untouched,
            )
            reason = "" if encoded is not None else "too_long" if untouched() else "overwritten"
            stored = None if encoded is None else deltas.add(base, target, encoded)
        asyncio.run_coroutine_threadsafe(self._settle_delta(stored), loop).result()
        return DeltaMade(
            version=target.version,
            base=None if stored is None else stored.base,
            reason=reason,
            digest="" if stored is None else stored.digest,
            bytes=0 if stored is None else stored.length,
            changed=0 if stored is None else stored.changed,
            seconds=time.perf_counter() - started,
        )

    async def _settle_delta(self, delta: StoredDelta | None) -> None:
        self.state.delta_made(delta)
        self._delta_settled.set()

    def _tell(self) -> None:
        """Write reports; a trainer that does not read them delays nothing else."""
        while (report := self._reports.get()) is not None:
            data = memoryview(pack(report))
            try:
                while data:
                    data = data[os.write(self._report_fd, data) :]
            except BrokenPipeError:
                return  # the trainer is gone; the orders' end says so too

    def _routes(self) -> list[Endpoint | StatusEndpoint]:
        return [
            StatusEndpoint("/get_version", lambda: {"version": self.state.version}, SenderVersion),
            StatusEndpoint("/get_buffer_info", self.state.buffer_info, BufferInfo),
            StatusEndpoint("/get_capabilities", self.state.capabilities, SenderCapabilities),
            Endpoint("GET", "/manifest/{version}", ManifestRequest, self._manifest),
            Endpoint("POST", "/register_sglang_instance", RegisterReceiverRequest, self._register_receiver),
            Endpoint("POST", "/request_transfer", TransferRequest, self._request_transfer),
        ]

    async def _manifest(self, request: ManifestRequest) -> Manifest:
        return self.state.manifest(request.version)

    async def _register_receiver(self, request: RegisterReceiverRequest) -> RegisterReceiverReply:
        return self.state.register(request, self._settings.host, self._streams.port)

    async def _request_transfer(self, request: TransferRequest) -> TransferReply:
        if request.mode == "delta" and self.state.delta_pending in (request.version, self.state.version):
            with contextlib.suppress(TimeoutError):  # not ready: the answer says so
                await asyncio.wait_for(self._delta_settled.wait(), DELTA_WAIT_S)
        return self.state.grant(request)


def main() -> int:
    """Run the agent that stdin describes; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the trainer decides when we go
    report_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not break the reports
    log.configure()
    try:
        settings = read_order(sys.stdin.buffer)
        if settings is None:
            return 0
        if not isinstance(settings, Settings):
            raise InvariantError(f"the agent's first order was a {type(settings).__name__}")
        asyncio.run(_serve(settings, sys.stdin.buffer, report_fd))
    except AstraFlowError as error:
        LOGGER.error("%s: %s", error.kind, error)
        return 1
    return 0


async def _serve(settings: Settings, orders: BinaryIO, report_fd: int) -> None:
    try:
        agent = SenderAgent(settings, orders, report_fd)
    except AstraFlowError as error:
        with contextlib.suppress(BrokenPipeError):
            os.write(report_fd, pack(Failed(reason=f"{error.kind}: {error}")))  # the first report fits into the pipe
        raise
    await agent.serve()


if __name__ == "__main__":
    sys.exit(main())
