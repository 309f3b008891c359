"""Invariant 5, provenance, on the rollout service's side: nothing is applied whose bytes are not the manifest's,
and nothing is served under a version unless the engine's own digest equals the manifest's.

    receiver = Receiver("127.0.0.1", 19090, token, transport="tcp")
    payload = await receiver.pull("127.0.0.1:18861", manifest)    # fetched and verified, beside running generation
    await engine.update(payload.version, payload.apply)           # in place, on the engine's thread, proven or undone
    payload.release()

Torch-free, unless an engine hands torch tensors over.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import time
from collections.abc import Callable, Mapping
from typing import Any

from astraflow.core.data import Manifest
from astraflow.core.protocol.clients import SenderClient
from astraflow.core.protocol.messages import (
    RegisterReceiverReply,
    RegisterReceiverRequest,
    TransferReply,
    TransferRequest,
)
from astraflow.core.weight_manager.digest import buffer_digests, check_manifest, describe_difference, differing
from astraflow.core.weight_manager.handover import Handover, handover_for
from astraflow.core.weight_manager.sender_state import UNKNOWN_INSTANCE, VERSION_GONE
from astraflow.core.weight_manager.transports import TRANSPORTS, Grant, open_fetch
from astraflow.errors import AstraFlowError, CallerError, DeadlineError, UnknownNameError, WeightError, boundary

PULL_TIMEOUT_S = 300.0
"""Seconds a pull may take in all."""
CALL_TIMEOUT_S = 30.0
"""Seconds one control call may take."""
DIGEST_WAIT_S = 0.01
"""Seconds between two looks for a version that is being published."""
FETCHES = 2
"""Times that broken bytes are fetched before the version is refused."""


class Payload:
    """A version's verified bytes, waiting to be applied; afterwards, what they overwrote."""

    def __init__(self, manifest: Manifest, staging: mmap.mmap, give_back: Callable[[mmap.mmap], None]) -> None:
        self.manifest = manifest
        self.mode = "full"
        self.bytes = manifest.nbytes
        self.broken = 0
        """Tensors that arrived broken and were fetched again."""
        self.timing: dict[str, float] = {}
        """pull_s, verify_s and, once applied, load_s."""
        self._staging: mmap.mmap | None = staging
        self._give_back = give_back
        self._handover: Handover | None = None

    @property
    def version(self) -> int:
        return self.manifest.version

    def apply(self, weights: Mapping[str, Any] | Handover) -> None:
        """Overwrite an engine's weights in place and prove it; runs on the engine's thread, once.

        `weights`: torch tensors or writable buffers of wire bytes by name, or an engine's own Handover. On
        WeightError the engine holds what it held before, bit for bit.
        """
        if self._staging is None or self._handover is not None:
            raise WeightError(f"version {self.version} was applied or released already")
        started = time.perf_counter()
        handover = handover_for(weights)
        handover.apply(self.manifest, memoryview(self._staging)[: self.bytes])
        try:
            with boundary(WeightError, f"version {self.version} cannot be proven"):
                wrong = differing(self.manifest, handover.digests(self.manifest))
        except AstraFlowError:
            handover.rollback()
            raise
        if wrong:
            handover.rollback()
            raise WeightError(
                f"the engine does not hold version {self.version} after it was applied: "
                f"{describe_difference(wrong, self.manifest)}; rolled back"
            )
        self._handover = handover
        self.timing["load_s"] = time.perf_counter() - started

    def rollback(self) -> None:
        """Undo a successful `apply` (a later check failed), on the engine's thread."""
        if self._handover is None or self._staging is None:
            raise WeightError(f"version {self.version} is not applied, or was released")
        self._handover.rollback()
        self._handover = None
        self.release()

    def release(self) -> None:
        """Give the staging memory back to the receiver; the version is final. Again is fine."""
        staging, self._staging, self._handover = self._staging, None, None
        if staging is not None:
            self._give_back(staging)


class Receiver:
    """Fetches versions for one engine. One pull at a time; a second one waits."""

    def __init__(self, host: str, port: int, token: str, *, transport: str = "tcp") -> None:
        """`host` and `port` are the rollout service's own: its name among the sender's receivers."""
        if transport not in TRANSPORTS:
            raise UnknownNameError("weight transport", transport, list(TRANSPORTS))
        self._host = host
        self._port = port
        self._token = token
        self._transport = transport
        self._clients: dict[str, SenderClient] = {}
        self._registrations: dict[str, RegisterReceiverReply] = {}
        self._one_at_a_time = asyncio.Lock()
        self._spare: mmap.mmap | None = None

    async def pull(self, endpoint: str, manifest: Manifest, timeout: float = PULL_TIMEOUT_S) -> Payload:
        """Fetch and verify the manifest's version from the sender at "host:port".

        Where the trainer has overwritten it meanwhile, the newest version is pulled instead: payload.manifest says
        which. WeightError: broken bytes, or a sender that does not have the version or has another under its
        number. PeerError, DeadlineError: the sender cannot be reached, or time is up.
        """
        check_manifest(manifest)
        deadline = time.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout), self._one_at_a_time:
                return await self._pull(endpoint, manifest, deadline)
        except TimeoutError as error:
            raise DeadlineError(f"{_name(manifest)} was not pulled from {endpoint} within {timeout:.0f} s") from error

    async def close(self) -> None:
        """Close the connections to senders."""
        for client in self._clients.values():
            await client.close()
        self._clients.clear()
        self._registrations.clear()

    async def _pull(self, endpoint: str, wanted: Manifest, deadline: float) -> Payload:
        started = time.perf_counter()
        broken: list[str] = []
        total_broken = 0
        verify_s = 0.0
        for _ in range(FETCHES):
            wanted, staging = await self._fetch(endpoint, wanted, deadline)
            began = time.perf_counter()
            broken = await asyncio.to_thread(_differing_in, wanted, staging)
            verify_s += time.perf_counter() - began
            if not broken:
                payload = Payload(wanted, staging, self._take_back)
                payload.timing = {"pull_s": time.perf_counter() - started - verify_s, "verify_s": verify_s}
                payload.broken = total_broken
                return payload
            self._take_back(staging)
            total_broken += len(broken)
            await self._check_identity(endpoint, wanted)
        difference = describe_difference(broken, wanted)
        raise WeightError(f"{_name(wanted)} arrived broken {FETCHES} times: {difference}")

    async def _fetch(self, endpoint: str, wanted: Manifest, deadline: float) -> tuple[Manifest, mmap.mmap]:
        """Fetch `wanted`, or the newest where that is gone, until a whole version is there."""
        while True:
            reply = await self._grant(endpoint, wanted.version)
            if not reply.ok and reply.reason != VERSION_GONE:
                raise WeightError(f"the sender at {endpoint} refused {_name(wanted)}: {reply.reason}")
            staging = await self._transfer(endpoint, wanted, reply, deadline) if reply.ok else None
            if staging is not None:
                return wanted, staging
            wanted = await self._newest(endpoint, wanted)

    async def _transfer(
        self, endpoint: str, wanted: Manifest, reply: TransferReply, deadline: float
    ) -> mmap.mmap | None:
        """Move the bytes into a staging buffer; None where the version was overwritten meanwhile."""
        if reply.bytes != wanted.nbytes:
            raise WeightError(
                f"the sender at {endpoint} offers {reply.bytes} bytes as {_name(wanted)}, "
                f"its manifest says {wanted.nbytes}"
            )
        staging = self._staging(wanted.nbytes)
        registration = self._registrations[endpoint]
        grant = Grant(
            host=endpoint.rpartition(":")[0].strip("[]"),
            version=wanted.version,
            length=wanted.nbytes,
            port=registration.trainer_rpc_port,
            ticket=bytes.fromhex(reply.ticket),
            path=registration.shm_name,
            offset=reply.offset,
        )
        fetch = open_fetch(self._transport, grant, memoryview(staging)[: wanted.nbytes], deadline)
        try:
            complete = await asyncio.to_thread(fetch.run)
        except asyncio.CancelledError:
            fetch.cancel()  # its thread may still write into the buffer, which therefore is not kept
            raise
        if not complete:
            self._take_back(staging)
            return None
        return staging

    async def _grant(self, endpoint: str, version: int) -> TransferReply:
        """Ask for a version; register first where the sender does not know us, as after its restart."""
        client = self._client(endpoint)
        request = TransferRequest(instance_id=f"{self._host}:{self._port}", version=version)
        if endpoint in self._registrations:
            reply = await client.request_transfer(request, timeout=CALL_TIMEOUT_S)
            if reply.reason != UNKNOWN_INSTANCE:
                return reply
        self._registrations[endpoint] = await client.register(
            RegisterReceiverRequest(
                sglang_http_host=self._host,
                sglang_http_port=self._port,
                transport=self._transport,  # type: ignore[arg-type]
            )
        )
        return await client.request_transfer(request, timeout=CALL_TIMEOUT_S)

    async def _newest(self, endpoint: str, gone: Manifest) -> Manifest:
        """The manifest of the version that took the place of one that is gone."""
        client = self._client(endpoint)
        version = await client.get_version()
        if version < gone.version:
            raise WeightError(f"the sender at {endpoint} does not have {_name(gone)}; its newest is {version}")
        if version == gone.version:
            # overwritten, and the next one is not digested yet
            await asyncio.sleep(DIGEST_WAIT_S)
            return gone
        manifest = await client.manifest(version)
        check_manifest(manifest)
        if manifest.model_id != gone.model_id or manifest.version != version:
            raise WeightError(
                f"the sender at {endpoint} gave {_name(manifest)} as version {version} of {gone.model_id}"
            )
        return manifest

    async def _check_identity(self, endpoint: str, wanted: Manifest) -> None:
        """Bytes differ from the manifest: refuse at once where the sender means another version by this number."""
        with contextlib.suppress(CallerError):  # it may be gone by now; then the next fetch finds the newest
            held = await self._client(endpoint).manifest(wanted.version)
            if held.digest != wanted.digest:
                raise WeightError(
                    f"{_name(wanted)} has digest {wanted.digest}; the sender at {endpoint} has another version of "
                    f"that number, {held.digest}"
                )

    def _client(self, endpoint: str) -> SenderClient:
        if endpoint not in self._clients:
            self._clients[endpoint] = SenderClient(f"http://{endpoint}", self._token, timeout=CALL_TIMEOUT_S)
        return self._clients[endpoint]

    def _staging(self, length: int) -> mmap.mmap:
        """A private buffer of at least `length` bytes: the spare one, if it is free and long enough."""
        spare, self._spare = self._spare, None
        return spare if spare is not None and len(spare) >= length else mmap.mmap(-1, max(length, 1))

    def _take_back(self, staging: mmap.mmap) -> None:
        self._spare = staging


def _differing_in(manifest: Manifest, staging: mmap.mmap) -> list[str]:
    """Names of the tensors in a staging buffer whose bytes are not the manifest's."""
    return differing(manifest, buffer_digests(manifest.tensors, memoryview(staging)))


def _name(manifest: Manifest) -> str:
    return f"version {manifest.version} of {manifest.model_id}"
