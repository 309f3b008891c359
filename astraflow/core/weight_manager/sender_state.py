"""What a sender agent knows and decides, without IO: who is registered, which versions exist, what a receiver gets.

Only whole, digested versions are ever granted. A grant is a ticket that dies with its version; a receiver that this
agent does not know (the agent was restarted) is told so.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.protocol.messages import (
    RegisterReceiverReply,
    RegisterReceiverRequest,
    TransferReply,
    TransferRequest,
)
from astraflow.core.weight_manager.segment import DoubleBuffer, path_of
from astraflow.core.weight_manager.transports import Bulk
from astraflow.errors import CallerError, DeadlineError

MANIFESTS_KEPT = 256
"""Manifests stay answerable for so many versions after their bytes are gone."""
TICKETS_KEPT = 1024

UNKNOWN_INSTANCE = "unknown_instance"
VERSION_GONE = "version_gone"
DELTA_NOT_READY = "delta_not_ready"


class SenderState:
    """All decisions of one agent."""

    def __init__(
        self,
        model_id: str,
        buffer: DoubleBuffer,
        layout: tuple[TensorEntry, ...],
        transports: tuple[str, ...],
        new_ticket: Callable[[], bytes] = lambda: secrets.token_bytes(16),
    ) -> None:
        self._model_id = model_id
        self._buffer = buffer
        self._layout = layout
        self._transports = transports
        self._new_ticket = new_ticket
        self._receivers: dict[str, str] = {}
        self._manifests: dict[int, Manifest] = {}
        self._halves: dict[int, int] = {}
        self._tickets: dict[bytes, Bulk] = {}

    def published(self, manifest: Manifest, half: int) -> None:
        """A version became available; what lay in that half before is gone."""
        self._halves = {version: kept for version, kept in self._halves.items() if kept != half}
        self._halves[manifest.version] = half
        self._manifests[manifest.version] = manifest
        for number in list(self._manifests)[:-MANIFESTS_KEPT]:
            del self._manifests[number]
        # replaced, not changed: the streams' threads look tickets up meanwhile
        self._tickets = {ticket: bulk for ticket, bulk in self._tickets.items() if bulk.intact()}

    @property
    def version(self) -> int:
        """The newest version; -1 before the first publish."""
        return next(reversed(self._halves), -1)

    def newest(self) -> Manifest:
        """Its manifest; DeadlineError (503) before the first publish."""
        if not self._halves:
            raise DeadlineError(f"no version of {self._model_id} yet: waiting for the trainer's first publish")
        return self._manifests[self.version]

    def manifest(self, version: int) -> Manifest:
        newest = self.newest()
        if version not in self._manifests:
            raise CallerError(f"no manifest of {self._model_id} version {version}; the newest is {newest.version}", 404)
        return self._manifests[version]

    def buffer_info(self) -> dict[str, Any]:
        manifest = self.newest()
        meta = [[entry.name, [list(entry.shape), entry.dtype]] for entry in manifest.tensors]
        return {"single_buffer_length": self._buffer.length, "tensors_meta": meta}

    def capabilities(self) -> dict[str, Any]:
        return {
            "strategies": ["full"],
            "version": self.version,
            "delta_ready": False,
            "delta_base_version": None,
            "delta_sparsity": None,
            "delta_size_bytes": None,
            "transports": list(self._transports),
        }

    def register(self, request: RegisterReceiverRequest, host: str, bulk_port: int) -> RegisterReceiverReply:
        """Admit a receiver; again is fine."""
        if request.transport not in self._transports:
            raise CallerError(
                f"transport {request.transport} is not served by the sender of {self._model_id}; "
                f"served: {', '.join(self._transports)}"
            )
        self._receivers[f"{request.sglang_http_host}:{request.sglang_http_port}"] = request.transport
        return RegisterReceiverReply(
            trainer_buffer_length=self._buffer.length,
            trainer_hostname=host,
            trainer_rpc_port=bulk_port,
            shm_name=path_of(self._buffer.fd) if "shm" in self._transports else None,
        )

    def grant(self, request: TransferRequest) -> TransferReply:
        """Lend the version asked for, or the newest where none is named; or say why not."""
        if request.instance_id not in self._receivers:
            return TransferReply(ok=False, reason=UNKNOWN_INSTANCE)
        newest = self.newest().version
        if request.mode == "delta":
            return TransferReply(ok=False, version=newest, mode="delta", fallback="full", reason=DELTA_NOT_READY)
        version = newest if request.version is None else request.version
        half = self._halves.get(version)
        if half is None or self._buffer.version_in(half) != version:
            return TransferReply(ok=False, version=newest, reason=VERSION_GONE)
        ticket = self._new_ticket()
        bulk = Bulk(
            fd=self._buffer.fd,
            offset=self._buffer.offset(half),
            length=self._manifests[version].nbytes,
            intact=lambda: self._buffer.version_in(half) == version,
        )
        recent = list(self._tickets.items())[1 - TICKETS_KEPT :]
        self._tickets = {**dict(recent), ticket: bulk}
        return TransferReply(ok=True, version=version, bytes=bulk.length, offset=bulk.offset, ticket=ticket.hex())

    def bulk(self, ticket: bytes) -> Bulk | None:
        """What a ticket lends; called from the streams' threads."""
        return self._tickets.get(ticket)
