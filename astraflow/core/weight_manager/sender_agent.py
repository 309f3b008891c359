"""The weight sender agent: a process of its own beside each trainer, so that serving never takes the trainer's time.

Torch-free. It digests what the trainer published into shared memory, answers the control routes, and serves the bytes.

    loop / thread     consumes           produces              waits for          ended by
    orders (thread)   stdin: Publish     SenderState, reports  the trainer        end of file: the trainer is gone
    reports (thread)  reports            stdout: Published     the trainer        the process
    control (loop)    HTTP of receivers  grants                requests           orders
    streams (threads) ranges by ticket   bytes                 receivers, ≤ 30 s  the process

Run by WeightManager as `python -m astraflow.core.weight_manager.sender_agent` (settings come through stdin).
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
import time
from typing import BinaryIO

from astraflow.core.data import Manifest
from astraflow.core.protocol.http import Endpoint, Server, StatusEndpoint, build_app
from astraflow.core.protocol.messages import (
    ManifestRequest,
    RegisterReceiverReply,
    RegisterReceiverRequest,
    TransferReply,
    TransferRequest,
)
from astraflow.core.weight_manager.agent_pipe import (
    Listening,
    Publish,
    Published,
    Report,
    Settings,
    Superseded,
    pack,
    read_order,
)
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.segment import DoubleBuffer
from astraflow.core.weight_manager.sender_state import SenderState
from astraflow.core.weight_manager.transports.tcp import BulkServer
from astraflow.errors import InvariantError


class SenderAgent:
    """The agent's parts, wired."""

    def __init__(self, settings: Settings, orders: BinaryIO, report_fd: int) -> None:
        self._settings = settings
        self._orders = orders
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._report_fd = report_fd
        self._buffer = DoubleBuffer.attach(settings.segment_fd, settings.length)
        self.state = SenderState(settings.model_id, self._buffer, settings.layout, settings.transports)
        self._streams = BulkServer(settings.host, self.state.bulk)
        app = build_app("weight sender agent", settings.token, self._routes())
        self._server = Server(app, settings.host, settings.port)

    async def serve(self) -> None:
        """Serve until the trainer is gone."""
        loop = asyncio.get_running_loop()
        self._streams.start()
        self._reports.put(Listening(port=self._server.port, bulk_port=self._streams.port))
        threading.Thread(target=self._tell, name="reports", daemon=True).start()
        threading.Thread(target=self._follow, args=(loop,), name="orders", daemon=True).start()
        await self._server.serve()
        self._server.close()
        self._streams.close()

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Carry out the trainer's orders until the end of file; the agent's life ends with this thread."""
        try:
            while (order := read_order(self._orders)) is not None:
                if not isinstance(order, Publish):
                    raise InvariantError(f"the agent was ordered a second {type(order).__name__}")
                self._reports.put(self._publish(order, loop))
        finally:
            loop.call_soon_threadsafe(self._server.stop)

    def _publish(self, order: Publish, loop: asyncio.AbstractEventLoop) -> Report:
        started = time.perf_counter()
        half = self._buffer.half(order.half)
        manifest = build_manifest(self._settings.model_id, order.version, self._settings.layout, half)
        if self._buffer.version_in(order.half) != order.version:
            return Superseded(version=order.version)
        digest_s = time.perf_counter() - started
        asyncio.run_coroutine_threadsafe(self._register(manifest, order.half), loop).result()
        return Published(manifest=manifest, digest_s=digest_s)

    async def _register(self, manifest: Manifest, half: int) -> None:
        self.state.published(manifest, half)

    def _tell(self) -> None:
        """Write reports; a trainer that does not read them delays nothing else."""
        while True:
            data = memoryview(pack(self._reports.get()))
            try:
                while data:
                    data = data[os.write(self._report_fd, data) :]
            except BrokenPipeError:
                return  # the trainer is gone; the orders' end says so too

    def _routes(self) -> list[Endpoint | StatusEndpoint]:
        return [
            StatusEndpoint("/get_version", lambda: {"version": self.state.version}),
            StatusEndpoint("/get_buffer_info", self.state.buffer_info),
            StatusEndpoint("/get_capabilities", self.state.capabilities),
            Endpoint("GET", "/manifest/{version}", ManifestRequest, self._manifest),
            Endpoint("POST", "/register_sglang_instance", RegisterReceiverRequest, self._register_receiver),
            Endpoint("POST", "/request_transfer", TransferRequest, self._request_transfer),
        ]

    async def _manifest(self, request: ManifestRequest) -> Manifest:
        return self.state.manifest(request.version)

    async def _register_receiver(self, request: RegisterReceiverRequest) -> RegisterReceiverReply:
        return self.state.register(request, self._settings.host, self._streams.port)

    async def _request_transfer(self, request: TransferRequest) -> TransferReply:
        return self.state.grant(request)


def main() -> None:
    """Run the agent that stdin describes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the trainer decides when we go
    report_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever prints must not break the reports
    settings = read_order(sys.stdin.buffer)
    if settings is None:
        return
    if not isinstance(settings, Settings):
        raise InvariantError(f"the agent's first order was a {type(settings).__name__}")
    asyncio.run(SenderAgent(settings, sys.stdin.buffer, report_fd).serve())


if __name__ == "__main__":
    main()
