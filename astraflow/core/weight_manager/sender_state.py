"""What a sender agent knows and decides, without IO: who is registered, which versions exist, what a receiver gets.

Only whole, digested versions are ever granted. A grant is a ticket that dies with its version; a receiver that this
agent does not know (the agent was restarted) is told so.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import msgspec

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.protocol.messages import (
    RegisterReceiverReply,
    RegisterReceiverRequest,
    TransferReply,
    TransferRequest,
)
from astraflow.core.weight_manager.delta_store import DeltaStore, StoredDelta
from astraflow.core.weight_manager.segment import PAGE, DoubleBuffer, path_of
from astraflow.core.weight_manager.transports import Bulk
from astraflow.core.weight_manager.version_folder import VersionFolder
from astraflow.errors import CallerError, DeadlineError

MANIFESTS_KEPT = 256
"""Manifests stay answerable for so many versions after their bytes are gone."""
TICKETS_KEPT = 1024
RECEIVERS_KEPT = 1024
"""Receivers that are known, those that registered last; one that was forgotten is told so, and registers again."""
INLINE_MAX = 8 * 2**20
"""Bytes of a delta that are sent in a reply at most: the control loop copies them while others wait."""

UNKNOWN_INSTANCE = "unknown_instance"
VERSION_GONE = "version_gone"
DELTA_NOT_READY = "delta_not_ready"
BASE_MISMATCH = "base_mismatch"


class SenderState:
    """All decisions of one agent."""

    def __init__(
        self,
        model_id: str,
        buffer: DoubleBuffer,
        layout: tuple[TensorEntry, ...],
        transports: tuple[str, ...],
        new_ticket: Callable[[], bytes] = lambda: secrets.token_bytes(16),
        deltas: DeltaStore | None = None,
        folder: VersionFolder | None = None,
    ) -> None:
        self._model_id = model_id
        self._buffer = buffer
        self._elements = max(1, sum(prod(entry.shape) for entry in layout))
        self._transports = transports
        self._new_ticket = new_ticket
        self._receivers: dict[str, str] = {}
        self._manifests: dict[int, Manifest] = {}
        self._halves: dict[int, int] = {}
        self._tickets: dict[bytes, Bulk] = {}
        self._deltas = deltas
        self._folder = folder
        self.delta_pending: int | None = None
        """The version whose delta is being made."""

    def published(self, manifest: Manifest, half: int) -> None:
        """A version became available; what lay in that half before is gone."""
        self._halves = {version: kept for version, kept in self._halves.items() if kept != half}
        self._halves[manifest.version] = half
        self._manifests[manifest.version] = manifest
        for number in list(self._manifests)[:-MANIFESTS_KEPT]:
            del self._manifests[number]
        # replaced, not changed: the streams' threads look tickets up meanwhile
        self._tickets = {ticket: bulk for ticket, bulk in self._tickets.items() if bulk.intact()}

    def delta_made(self, delta: StoredDelta | None) -> None:
        """The delta that was pending is there; or there will be none."""
        self.delta_pending = None
        if delta is not None and delta.version in self._manifests:
            self._manifests[delta.version] = msgspec.structs.replace(
                self._manifests[delta.version],
                base=delta.base,
                base_digest=self._manifests[delta.base].digest,
                delta_digest=delta.digest,
            )

    @property
    def version(self) -> int:
        """The newest version; -1 before the first publish."""
        return next(reversed(self._halves), -1)

    @property
    def manifests(self) -> Mapping[int, Manifest]:
        """Those that are still answerable, by version."""
        return self._manifests

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
        delta = None if self._deltas is None else self._deltas.newest
        ready = delta is not None and delta.version == self.version
        return {
            "strategies": ["full"] if self._deltas is None else ["full", "delta"],
            "version": self.version,
            "delta_ready": ready,
            "delta_base_version": delta.base if delta is not None and ready else None,
            "delta_sparsity": 1 - delta.changed / self._elements if delta is not None and ready else None,
            "delta_size_bytes": delta.length if delta is not None and ready else None,
            "transports": list(self._transports),
        }

    def register(self, request: RegisterReceiverRequest, host: str, bulk_port: int) -> RegisterReceiverReply:
        """Admit a receiver; again is fine."""
        if request.transport not in self._transports:
            raise CallerError(
                f"transport {request.transport} is not served by the sender of {self._model_id}; "
                f"served: {', '.join(self._transports)}"
            )
        name = f"{request.sglang_http_host}:{request.sglang_http_port}"
        self._receivers.pop(name, None)
        self._receivers[name] = request.transport
        if len(self._receivers) > RECEIVERS_KEPT:
            del self._receivers[next(iter(self._receivers))]
        return RegisterReceiverReply(
            trainer_buffer_length=self._buffer.length,
            trainer_hostname=host,
            trainer_rpc_port=bulk_port,
            shm_name=path_of(self._buffer.fd) if "shm" in self._transports else None,
            path=None if self._folder is None else str(self._folder.root),
        )

    def grant(self, request: TransferRequest) -> TransferReply:
        """Lend the version asked for, or the newest where none is named; or say why not."""
        if request.instance_id not in self._receivers:
            return TransferReply(ok=False, reason=UNKNOWN_INSTANCE)
        newest = self.newest().version
        if request.mode == "delta":
            return self._grant_delta(request, newest)
        version = newest if request.version is None else request.version
        half = self._halves.get(version)
        if half is None or self._buffer.version_in(half) != version:
            return TransferReply(ok=False, version=newest, reason=VERSION_GONE)
        if self._receivers[request.instance_id] == "disk":
            path = None if self._folder is None else self._folder.full(version)
            if path is None:
                return TransferReply(ok=False, version=newest, reason=VERSION_GONE)
            return TransferReply(ok=True, version=version, bytes=self._manifests[version].nbytes, path=str(path))
        bulk = Bulk(
            fd=self._buffer.fd,
            offset=self._buffer.offset(half),
            length=self._manifests[version].nbytes,
            intact=lambda: self._buffer.version_in(half) == version,
        )
        ticket = self._lend(bulk)
        return TransferReply(ok=True, version=version, bytes=bulk.length, offset=bulk.offset, ticket=ticket)

    def _grant_delta(self, request: TransferRequest, newest: int) -> TransferReply:
        """Lend the delta that starts from the version which the receiver has: from no other (law 20)."""
        wanted = newest if request.version is None else request.version
        delta = None if self._deltas is None else self._deltas.on(request.have_version)
        if delta is None or delta.version > wanted:
            expected = self._deltas is None or request.have_version in list(self._halves)[:-1]
            reason = DELTA_NOT_READY if expected else BASE_MISMATCH
            return TransferReply(ok=False, version=newest, mode="delta", fallback="full", reason=reason)
        reply = TransferReply(
            ok=True, version=delta.version, mode="delta", bytes=delta.length, digest=delta.digest, path=str(delta.disk)
        )
        if self._receivers[request.instance_id] == "disk":
            return reply
        assert delta.memory is not None
        if delta.length <= min(request.inline_max, INLINE_MAX):
            return msgspec.structs.replace(reply, path=None, data=delta.memory.read(delta.length))
        # the question keeps the file open for its stream; dropping a delta cuts its readers off
        ticket = self._lend(Bulk(delta.memory.fd, PAGE, delta.length, lambda: self._keeps(delta)))
        return msgspec.structs.replace(reply, path=delta.memory.path, offset=PAGE, ticket=ticket)

    def _keeps(self, delta: StoredDelta) -> bool:
        return self._deltas is not None and self._deltas.on(delta.base) is delta

    def _lend(self, bulk: Bulk) -> str:
        ticket = self._new_ticket()
        recent = list(self._tickets.items())[1 - TICKETS_KEPT :]
        self._tickets = {**dict(recent), ticket: bulk}
        return ticket.hex()

    def bulk(self, ticket: bytes) -> Bulk | None:
        """What a ticket lends; called from the streams' threads."""
        return self._tickets.get(ticket)
