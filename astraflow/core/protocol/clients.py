"""One method a route, for each program that is called."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec

from astraflow.core.data import Failed, LeaseId, Manifest, ModelRequest, ModelResponse, decode
from astraflow.core.data.trajectory import EpisodeResult, GroupResult
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.http import Peer, Transport
from astraflow.errors import DataError, PeerError

T = TypeVar("T")

MARGIN = 10.0
"""Seconds that a client waits beyond the deadline which it gave the peer."""


class _Client:
    def __init__(self, url: str, token: str, *, transport: Transport | None = None, timeout: float = 30.0) -> None:
        self.peer = Peer(url, token, transport=transport, timeout=timeout)

    @property
    def url(self) -> str:
        return self.peer.url

    async def close(self) -> None:
        await self.peer.close()


class DataflowClient(_Client):
    """What trainers and RaaS ask of Dataflow."""

    async def ready(self, request: m.ReadyRequest) -> m.ReadyReply:
        return await self.peer.post("/ready", request, m.ReadyReply)

    async def batch(self, model_id: str, version: int, timeout: float) -> m.BatchReply:
        """Wait up to `timeout` seconds for the batch that follows `version`; DeadlineError says what is waited for."""
        params = {"model_id": model_id, "version": version, "timeout": timeout}
        return await self.peer.get("/batch", m.BatchReply, params=params, timeout=timeout + MARGIN)

    async def notify_version(self, request: m.NotifyVersionRequest, timeout: float = 900.0) -> m.NotifyVersionReply:
        return await self.peer.post("/notify_version", request, m.NotifyVersionReply, timeout=timeout)

    async def save_buffer(self, model_id: str | None = None, step: int | None = None) -> m.Ok:
        return await self.peer.post("/save_buffer", m.SaveBufferRequest(model_id=model_id, step=step), m.Ok)

    async def register_raas(self, request: m.RegisterRaaSRequest) -> m.RegisterRaaSReply:
        return await self.peer.post("/register_raas", request, m.RegisterRaaSReply)

    async def deregister_raas(
        self, uid: str, *, drain: bool = True, shutdown: bool = False, incarnation: str = ""
    ) -> m.RegisterRaaSReply:
        request = m.DeregisterRaaSRequest(uid=uid, drain=drain, shutdown=shutdown, incarnation=incarnation)
        return await self.peer.post("/deregister_raas", request, m.RegisterRaaSReply)

    async def deregister_trainer(self, model_id: str) -> m.Ok:
        return await self.peer.post("/deregister_trainer", m.DeregisterTrainerRequest(model_id=model_id), m.Ok)

    async def raas_pool(self) -> dict[str, Any]:
        return await self.peer.get("/raas_pool", dict[str, Any])

    async def status(self) -> dict[str, Any]:
        return await self.peer.get("/status", dict[str, Any])

    async def shutdown(self) -> m.Ok:
        return await self.peer.post("/shutdown", m.Empty(), m.Ok)


class RaaSClient(_Client):
    """What Dataflow and tools ask of a RaaS; the envelope is opened here."""

    async def _call(self, path: str, request: msgspec.Struct, result: type[T], timeout: float | None = None) -> T:
        return self._result(path, await self.peer.post(path, request, m.RaaSReply, timeout=timeout), result)

    def _result(self, path: str, reply: m.RaaSReply, result: type[T]) -> T:
        if not reply.ok:
            raise PeerError(f"{self.url}{path}: {reply.error}")
        try:
            return decode(bytes(reply.result), result)
        except DataError as error:
            raise DataError(f"{self.url}{path}: {error}") from error

    async def status(self, timeout: float = 5.0) -> m.RaaSStatus:
        return await self.peer.get("/status", m.RaaSStatus, timeout=timeout)

    async def availability(self, timeout: float = 5.0) -> m.Availability:
        return await self.peer.get("/availability", m.Availability, timeout=timeout)

    async def register_workflow(self, request: m.RegisterWorkflowRequest) -> m.RegisterWorkflowResult:
        return await self._call("/register_workflow", request, m.RegisterWorkflowResult)

    async def submit(self, request: m.SubmitRequest) -> list[m.Accepted]:
        return await self._call("/submit", request, list[m.Accepted])

    async def pull(self, request: m.PullRequest) -> list[m.PulledItem]:
        """Results; an episode whose record cannot be read is a failed one that says why, and harms no other."""
        timeout = request.timeout + MARGIN
        reply = await self.peer.post("/pull", request, m.RaaSReply, timeout=timeout)
        try:
            return self._result("/pull", reply, list[m.PulledItem])
        except DataError:
            return [item.read(self.url) for item in self._result("/pull", reply, list[_Item])]

    async def cancel(self, task_ids: list[str]) -> m.CancelResult:
        return await self._call("/cancel", m.CancelRequest(task_ids=task_ids), m.CancelResult)

    async def generate(self, request: ModelRequest, timeout: float = 300.0) -> ModelResponse:
        return await self._call("/generate", request, ModelResponse, timeout)

    async def stream(self, request: m.GenerateRequest, timeout: float = 300.0) -> AsyncIterator[m.GeneratedPart]:
        """What `generate` gives, part by part, each at most `timeout` seconds after the one before.

        The last part has the stop reason. PeerError where the peer fails or goes away before it.
        """
        request, ended = msgspec.structs.replace(request, stream=True), False
        async for reply in self.peer.stream("/generate", request, m.RaaSReply, timeout=timeout):
            part = self._result("/generate", reply, m.GeneratedPart)
            ended = part.stop_reason is not None
            yield part
        if not ended:
            raise PeerError(f"{self.url}/generate: the stream ended before its last part")

    async def notify_version(
        self, request: m.RaaSNotifyVersionRequest, timeout: float = 300.0
    ) -> m.RaaSNotifyVersionResult:
        return await self._call("/notify_version", request, m.RaaSNotifyVersionResult, timeout)

    async def pause(self, request: m.PauseRequest) -> m.Ok:
        return await self._call("/pause", request, m.Ok)

    async def resume(self, model_id: str) -> m.Ok:
        return await self._call("/resume", m.PauseRequest(model_id=model_id), m.Ok)

    async def shutdown(self) -> m.Ok:
        return await self.peer.post("/shutdown", m.Empty(), m.Ok)


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    """A PulledItem of which only task and lease are known yet."""

    task_id: str
    lease: LeaseId
    result: msgspec.Raw

    def read(self, url: str) -> m.PulledItem:
        try:
            result = decode(bytes(self.result), _Group)
            episodes = tuple(_read(episode, url) for episode in result.episodes)
            group = GroupResult(group_id=result.group_id, episodes=episodes, timing=result.timing)
        except DataError as error:
            with contextlib.suppress(DataError):
                rejected = decode(bytes(self.result), type(None))
                return m.PulledItem(task_id=self.task_id, lease=self.lease, result=rejected)
            group = GroupResult(group_id=-1, episodes=(_unreadable(error, url),))
        return m.PulledItem(task_id=self.task_id, lease=self.lease, result=group)


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    group_id: int
    episodes: tuple[msgspec.Raw, ...]
    timing: dict[str, float] = {}


def _read(episode: msgspec.Raw, url: str) -> EpisodeResult:
    try:
        return decode(bytes(episode), EpisodeResult)  # type: ignore[arg-type]
    except DataError as error:
        return _unreadable(error, url)


def _unreadable(error: DataError, url: str) -> Failed:
    return Failed("crash", f"what the RaaS at {url} returned cannot be read: {error}")


class SenderClient(_Client):
    """What a receiver asks of a weight sender agent."""

    async def get_version(self) -> int:
        return int((await self.peer.get("/get_version", dict[str, int]))["version"])

    async def buffer_info(self) -> dict[str, Any]:
        return await self.peer.get("/get_buffer_info", dict[str, Any])

    async def capabilities(self) -> dict[str, Any]:
        return await self.peer.get("/get_capabilities", dict[str, Any])

    async def manifest(self, version: int) -> Manifest:
        return await self.peer.get(f"/manifest/{version}", Manifest)

    async def register(self, request: m.RegisterReceiverRequest) -> m.RegisterReceiverReply:
        return await self.peer.post("/register_sglang_instance", request, m.RegisterReceiverReply)

    async def request_transfer(self, request: m.TransferRequest, timeout: float = 60.0) -> m.TransferReply:
        return await self.peer.post("/request_transfer", request, m.TransferReply, timeout=timeout)
