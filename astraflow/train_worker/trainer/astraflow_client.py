"""AstraFlowClient: how a trainer, which is a plain loop, talks to Dataflow. No torch import.

    client = AstraFlowClient(url, token, "model0")
    client.initialize()
    client.signal_ready(train_batch_size=256, sender_endpoint="127.0.0.1:4711", manifest=manifest)
    reply = client.get_batch(version=0)
    client.notify_version(1, step=1, manifest=manifest)
    client.close()

Calls block and run on an event loop in a thread of the client's own, or on one that the caller runs in another thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from astraflow.core.data import Manifest
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.clients import DataflowClient
from astraflow.core.protocol.http import Transport
from astraflow.errors import CallerError, DeadlineError, PeerError, WireError

T = TypeVar("T")

POLL_S = 0.1
"""Seconds between two tries to reach a Dataflow that is starting."""
NOTIFY_TIMEOUT_S = 900.0
"""Longest wait for a notification's reply; with run_eval it contains the evaluation."""


class AstraFlowClient:
    """Blocking calls of one trainer; used from one thread.

    Every call raises CallerError where the request or the token is wrong, ConflictError where it contradicts what
    Dataflow knows (nothing was changed), DeadlineError where time was up (it says who waited on what, and since when),
    and PeerError where Dataflow cannot be reached or the run is over, with the reason.
    """

    def __init__(
        self,
        url: str,
        token: str,
        model_id: str = "default",
        *,
        transport: Transport | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        patience: float = 0.0,
    ) -> None:
        """`transport` and `loop` are for in-process use: the loop must be running in another thread.

        `patience`: seconds that a call outlasts a Dataflow which cannot be reached, because it is started again. All
        calls are idempotent.
        """
        self.model_id = model_id
        self._thread: threading.Thread | None = None
        if loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=loop.run_forever, name="astraflow-client", daemon=True)
            self._thread.start()
        self._loop = loop
        self._client = DataflowClient(url, token, transport=transport)
        self._patience = patience
        self._incarnation = uuid4().hex
        self._pending: list[concurrent.futures.Future[m.NotifyVersionReply]] = []

    def initialize(self, timeout: float = 60.0) -> dict[str, Any]:
        """Wait until Dataflow answers and return its status. DeadlineError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._wait(self._client.status())
            except CallerError:
                raise
            except WireError as error:
                if time.monotonic() >= deadline:
                    raise DeadlineError(
                        f"trainer of {self.model_id} waited {timeout:.0f} s for Dataflow: {error}"
                    ) from error
            time.sleep(POLL_S)

    def signal_ready(
        self,
        train_batch_size: int,
        sender_endpoint: str,
        manifest: Manifest | None = None,
        *,
        recovered_version: int = 0,
        recovered_step: int | None = None,
    ) -> int:
        """Register this trainer of `train_batch_size` samples a step; returns the number of its next version.

        Fresh start: version 0 is published and `manifest` is its. A restored trainer gives the highest number it
        knows of and the step that it stands at instead, and publishes what it restored as the number returned.
        ConflictError: the model is unknown or taken. CallerError: groups do not divide the batch size.
        """
        request = m.ReadyRequest(
            train_batch_size=train_batch_size,
            sender_endpoint=sender_endpoint,
            model_id=self.model_id,
            recovered_version=recovered_version,
            recovered_step=recovered_step,
            manifest=manifest,
            incarnation=self._incarnation,
        )
        return self._wait(self._insist(lambda: self._client.ready(request))).next_version

    def get_batch(self, version: int, timeout: float = 600.0) -> m.BatchReply:
        """The batch for a trainer that holds `version`; asked again, the same.

        `reply.batch` is N rows laid end to end (`padded()`: arrays [N, L]), `reply.buffer_stats` what to log beside it.
        DeadlineError says what is missing; ConflictError: a newer version was announced.
        """
        return self._wait(self._insist(lambda: self._client.batch(self.model_id, version, timeout)))

    def notify_version(
        self,
        version: int,
        step: int,
        manifest: Manifest | None = None,
        *,
        run_eval: bool = False,
        last: bool = False,
        timeout: float = NOTIFY_TIMEOUT_S,
    ) -> m.NotifyVersionReply:
        """Acknowledge the batch before `version` and make it current; with `run_eval` wait for the evaluation.

        last: no batch will be asked for after it, so other policies need not wait for this one.
        """
        return self._wait(self._notification(version, step, manifest, run_eval, timeout, last))

    def notify_version_async(
        self,
        version: int,
        step: int,
        manifest: Manifest | None = None,
        *,
        run_eval: bool = False,
        timeout: float = NOTIFY_TIMEOUT_S,
    ) -> None:
        """As notify_version, without waiting; `drain_pending_notifications` returns the reply or raises its error."""
        call = self._notification(version, step, manifest, run_eval, timeout)
        self._pending.append(asyncio.run_coroutine_threadsafe(call, self._loop))

    def drain_pending_notifications(self, wait: bool = True) -> list[m.NotifyVersionReply]:
        """Wait for all notifications sent without waiting; their replies in order, or the first error.

        wait False: only of those that have ended, up to the first that has not.
        """
        replies = []
        while self._pending and (wait or self._pending[0].done()):
            replies.append(self._pending.pop(0).result())
        return replies

    @property
    def has_pending_notifications(self) -> bool:
        """Is there a notification, sent without waiting, whose reply was not drained?"""
        return bool(self._pending)

    def save_buffer(self, step: int) -> None:
        """This trainer's state after `step` is on disk: Dataflow makes a cut too and lets go of what is older."""
        self._wait(self._insist(lambda: self._client.save_buffer(self.model_id, step)))

    def shutdown_service(self) -> None:
        """Ask Dataflow to stop."""
        self._wait(self._client.shutdown())

    def close(self) -> None:
        """Give up what is pending and close the connections; again is fine."""
        for future in self._pending:
            future.cancel()
        self._pending = []
        if self._loop.is_closed():
            return
        self._wait(self._client.close())
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _notification(
        self, version: int, step: int, manifest: Manifest | None, run_eval: bool, timeout: float, last: bool = False
    ) -> Coroutine[Any, Any, m.NotifyVersionReply]:
        request = m.NotifyVersionRequest(
            version=version, step=step, run_eval=run_eval, model_id=self.model_id, manifest=manifest, last=last
        )
        return self._insist(lambda: self._client.notify_version(request, timeout))

    async def _insist(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        deadline: float | None = None
        while True:
            try:
                return await call()
            except PeerError as error:
                # an answer, even a bad one, has no cause: only who cannot be reached is waited for
                if error.__cause__ is None or not self._patience:
                    raise
                deadline = deadline or time.monotonic() + self._patience
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(POLL_S)

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # a signal ended the wait: the request must not go on
            raise
