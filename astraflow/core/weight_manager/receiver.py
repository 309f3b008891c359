"""Invariant 5, provenance, on the rollout service's side: nothing is applied whose bytes are not the manifest's,
and nothing is served under a version unless the engine's own digest equals the manifest's.

    receiver = Receiver("127.0.0.1", 19090, token, transport="tcp")
    payload = await receiver.pull("127.0.0.1:18861", manifest)    # fetched and verified, beside running generation
    await engine.update(payload.version, payload.apply)           # in place, on the engine's thread, proven or undone
    payload.release()

A delta is pulled where the policy has a proven base for it; whatever is wrong with one, the full version comes instead
and the reason is counted. Torch-free, unless an engine hands torch tensors over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from astraflow.core.data import Manifest
from astraflow.core.protocol.clients import SenderClient
from astraflow.core.protocol.messages import (
    RegisterReceiverReply,
    RegisterReceiverRequest,
    TransferReply,
    TransferRequest,
)
from astraflow.core.weight_manager.delta import Change, DeltaReader
from astraflow.core.weight_manager.digest import (
    buffer_digests,
    check_manifest,
    describe_difference,
    differing,
    tensor_digest,
)
from astraflow.core.weight_manager.payload import DeltaPayload, FullPayload, Payload
from astraflow.core.weight_manager.policy import Strategy, SyncPolicy
from astraflow.core.weight_manager.sender_state import INLINE_MAX, UNKNOWN_INSTANCE, VERSION_GONE
from astraflow.core.weight_manager.transports import TRANSPORTS, Grant, open_fetch
from astraflow.errors import CallerError, DeadlineError, UnknownNameError, WeightError

logger = logging.getLogger(__name__)

PULL_TIMEOUT_S = 300.0
"""Seconds a pull may take in all."""
CALL_TIMEOUT_S = 30.0
"""Seconds one control call may take."""
DIGEST_WAIT_S = 0.01
"""Seconds between two looks for a version that is being published."""
FETCHES = 2
"""Times that broken bytes are fetched before the version is refused."""


class _InFullError(WeightError):
    """There is no delta to be had; nothing is wrong."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Receiver:
    """Fetches versions for one engine. One pull at a time; a second one waits."""

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        *,
        transport: str = "tcp",
        strategy: Strategy = "full",
        full_sync_interval: int = 0,
        reach: Callable[[str, int], tuple[str, int]] = lambda host, port: (host, port),
    ) -> None:
        """`host` and `port` are the rollout service's own: its name among the sender's receivers.

        `full_sync_interval`: see SyncPolicy. `reach`: the address under which a sender's address is reached from here,
        for a tunnel or a forwarded port.
        """
        if transport not in TRANSPORTS:
            raise UnknownNameError("weight transport", transport, list(TRANSPORTS))
        self._host = host
        self._port = port
        self._token = token
        self._transport = transport
        self._clients: dict[str, SenderClient] = {}
        self._registrations: dict[str, RegisterReceiverReply] = {}
        self.policy = SyncPolicy(strategy, full_sync_interval)
        self._reach = reach
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
                payload = await self._pull_delta(endpoint, manifest, deadline)
                return payload or await self._pull(endpoint, manifest, deadline)
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
                payload = FullPayload(wanted, staging, self.policy, self._take_back)
                payload.timing = {"pull_s": time.perf_counter() - started - verify_s, "verify_s": verify_s}
                payload.broken = total_broken
                return payload
            self._take_back(staging)
            total_broken += len(broken)
            await self._check_identity(endpoint, wanted)
        difference = describe_difference(broken, wanted)
        raise WeightError(f"{_name(wanted)} arrived broken {FETCHES} times: {difference}")

    async def _pull_delta(self, endpoint: str, wanted: Manifest, deadline: float) -> Payload | None:
        """Fetch and verify the deltas from the engine's version to `wanted`; None: it has to be the full version."""
        base = self.policy.base_for(wanted)
        if base is None:
            return None
        try:
            return await self._delta_chain(endpoint, base, wanted, deadline)
        except _InFullError as error:
            self.policy.fell_back(error.reason)
        except WeightError as error:
            logger.warning("%s from %s: %s; it is pulled in full", _name(wanted), endpoint, error)
            self.policy.fell_back("broken")
        return None

    async def _delta_chain(self, endpoint: str, base: Manifest, wanted: Manifest, deadline: float) -> Payload:
        started = time.perf_counter()
        have = (base.version, base.digest)
        changes: list[Change] = []
        length, verify_s = 0, 0.0
        while have[0] < wanted.version:
            reply = await self._grant(endpoint, wanted.version, "delta", have[0])
            if not reply.ok:
                raise _InFullError(reply.reason)
            if not have[0] < reply.version <= wanted.version:
                raise WeightError(f"version {reply.version} does not lie between {have[0]} and {wanted.version}")
            length += reply.bytes
            if not self.policy.worth(length, wanted):
                raise _InFullError("too_long")
            file = memoryview(reply.data or bytearray(reply.bytes))
            if not reply.data and not await self._transfer(endpoint, reply, file, deadline):
                raise _InFullError(VERSION_GONE)
            began = time.perf_counter()
            have = await asyncio.to_thread(_read_delta, file, reply, have, wanted, changes)
            verify_s += time.perf_counter() - began
        payload = DeltaPayload(wanted, length, changes, self.policy)
        payload.timing = {"pull_s": time.perf_counter() - started - verify_s, "verify_s": verify_s}
        return payload

    async def _fetch(self, endpoint: str, wanted: Manifest, deadline: float) -> tuple[Manifest, mmap.mmap]:
        """Fetch `wanted`, or the newest where that is gone, until a whole version is there."""
        while True:
            reply = await self._grant(endpoint, wanted.version)
            if not reply.ok and reply.reason != VERSION_GONE:
                raise WeightError(f"the sender at {endpoint} refused {_name(wanted)}: {reply.reason}")
            if reply.ok:
                if reply.bytes != wanted.nbytes:
                    raise WeightError(
                        f"the sender at {endpoint} offers {reply.bytes} bytes as {_name(wanted)}, "
                        f"its manifest says {wanted.nbytes}"
                    )
                staging = self._staging(wanted.nbytes)
                # a transfer that raises may still be written to by its threads, and its buffer is not kept
                if await self._transfer(endpoint, reply, memoryview(staging)[: wanted.nbytes], deadline):
                    return wanted, staging
                self._take_back(staging)
            wanted = await self._newest(endpoint, wanted)

    async def _transfer(self, endpoint: str, reply: TransferReply, into: memoryview, deadline: float) -> bool:
        """Move the bytes that were granted into a buffer; False where they went away meanwhile."""
        registration = self._registrations[endpoint]
        host, port = self._reach(endpoint.rpartition(":")[0].strip("[]"), registration.trainer_rpc_port)
        grant = Grant(
            host=host,
            version=reply.version,
            length=reply.bytes,
            port=port,
            ticket=bytes.fromhex(reply.ticket),
            path=reply.path or registration.shm_name,
            offset=reply.offset,
        )
        fetch = open_fetch(self._transport, grant, into, deadline)
        try:
            return await asyncio.to_thread(fetch.run)
        except asyncio.CancelledError:
            fetch.cancel()
            raise

    async def _grant(
        self, endpoint: str, version: int, mode: Literal["full", "delta"] = "full", have_version: int = -1
    ) -> TransferReply:
        """Ask for a version; register first where the sender does not know us, as after its restart."""
        client = self._client(endpoint)
        request = TransferRequest(
            instance_id=f"{self._host}:{self._port}",
            version=version,
            mode=mode,
            have_version=have_version,
            inline_max=INLINE_MAX if self._transport == "tcp" else 0,
        )
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
            host, _, port = endpoint.rpartition(":")
            at, number = self._reach(host, int(port))
            self._clients[endpoint] = SenderClient(f"http://{at}:{number}", self._token, timeout=CALL_TIMEOUT_S)
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


def _read_delta(
    file: memoryview, reply: TransferReply, have: tuple[int, str], wanted: Manifest, changes: list[Change]
) -> tuple[int, str]:
    """Verify one delta of a chain, add its changes, and return (version, digest) of what it makes."""
    if tensor_digest(file) != reply.digest:
        raise WeightError(f"the delta to version {reply.version} arrived broken")
    if reply.version == wanted.version and wanted.delta_digest not in (None, reply.digest):
        raise WeightError(f"the delta offered for version {reply.version} is not the one that its manifest names")
    reader = DeltaReader(file)
    reached = (reader.header.version, reader.header.digest)
    # what an earlier delta of a chain makes is known by its header only; the last one has to make the manifest's
    target = (
        wanted
        if reply.version == wanted.version
        else msgspec.structs.replace(wanted, version=reply.version, digest=reader.header.digest)
    )
    reader.check(*have, target)
    changes.extend(reader.changes())
    return reached


def _name(manifest: Manifest) -> str:
    return f"version {manifest.version} of {manifest.model_id}"
