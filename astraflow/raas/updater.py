"""Invariant 5 in a RaaS: an engine serves under a version only after its own digest equals the manifest's (LAW 18).

    notify ──► UpdatePhase (decides) ──► pull, verify ──► engine.update(install, prove | undo) ──► router.serves
                    │ a newer one while pulling: the pull ends, its announcer is told who superseded it
                    │ a newer one while applying: it is next

One update at a time per model. Generation goes on beside the pull; the swap itself, digest and canaries included,
happens between two decode steps: no token is sampled under a version that may still be refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from astraflow.core.data import Manifest
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol.messages import RaaSNotifyVersionRequest, RaaSNotifyVersionResult, VersionState
from astraflow.core.weight_manager.canary import canary_gap, tolerance
from astraflow.core.weight_manager.version_log import VersionLog
from astraflow.errors import (
    AstraFlowError,
    CallerError,
    ConflictError,
    DeadlineError,
    PeerError,
    WeightError,
    boundary,
)
from astraflow.raas.engines.base import Engine, Scorer, Weights
from astraflow.raas.state import UpdatePhase, Verdict, superseded

logger = logging.getLogger(__name__)


class Payload(Protocol):
    """Verified bytes of a version, as core.weight_manager's receiver gives them."""

    manifest: Manifest
    mode: str
    bytes: int
    timing: dict[str, float]

    def apply(self, weights: Weights) -> None:
        """Overwrite, prove, or undo and raise WeightError."""

    def rollback(self) -> None:
        """Undo a successful `apply`."""

    def release(self) -> None: ...


class WeightSource(Protocol):
    """Where versions come from; core.weight_manager.Receiver, or a fake."""

    async def pull(self, endpoint: str, manifest: Manifest) -> Payload: ...

    async def close(self) -> None: ...


Outcome = RaaSNotifyVersionResult
ManifestOf = Callable[[str, int], Any]
"""(sender endpoint, version) → awaitable Manifest, for an announcement that comes without one."""


class _AwayError(WeightError):
    """The sender cannot be reached."""


class _CanaryError(WeightError):
    """An engine computes something else than the trainer, from the same bytes."""


class _Job:
    """One announced version on its way."""

    def __init__(self, endpoint: str, manifest: Manifest) -> None:
        self.endpoint = endpoint
        self.manifest = manifest
        self.answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    def resolve(self, outcome: Outcome | AstraFlowError) -> None:
        if self.answer.done():
            return
        if isinstance(outcome, AstraFlowError):
            self.answer.set_exception(outcome)
            self.answer.exception()  # whoever announced it may be gone: not an unheard error
        else:
            self.answer.set_result(outcome)


class Updater:
    """Brings one engine from version to version."""

    def __init__(
        self,
        engine: Engine,
        source: Callable[[], WeightSource],
        manifest_of: ManifestOf,
        serves: Callable[[str, VersionState], None],
        spans: SpanLog | None = None,
        log: VersionLog | None = None,
        name: str = "raas",
    ) -> None:
        """`source` is made at the first pull; `serves` is told each version that the engine proved.

        `log` notes what was served, and alarms, under the service's `name`.
        """
        self.engine = engine
        self.state = UpdatePhase()
        self.last_error = ""
        self._make_source = source
        self._source: WeightSource | None = None
        self._manifest_of = manifest_of
        self._serves = serves
        self._spans = spans or SpanLog(None, "raas")
        self._name = name
        self._log = log
        self._job: _Job | None = None
        self._next: _Job | None = None

    async def notify(self, request: RaaSNotifyVersionRequest) -> Outcome:
        """Bring the announced version into service and answer when it is. ConflictError for a second digest."""
        if not request.sender_endpoint:
            return self._result(ok=False, reason="no sender_endpoint")
        manifest = request.manifest
        if manifest is None:
            try:
                manifest = await self._manifest_of(request.sender_endpoint, request.version)
            except (PeerError, DeadlineError) as error:
                return self._away(f"the sender at {request.sender_endpoint} cannot be reached: {error}")
        if manifest.model_id != request.model_id or manifest.version != request.version:
            named = f"version {manifest.version} of {manifest.model_id}"
            raise CallerError(f"the manifest is of {named}, announced was {request.version} of {request.model_id}")
        decision = self.state.notify(manifest.version, manifest.digest)
        match decision.verdict:
            case Verdict.CONFLICT:
                self._alarm(manifest.version, decision.reason)
                raise ConflictError(decision.reason)
            case Verdict.DONE | Verdict.REFUSE:
                return self._result(ok=decision.verdict is Verdict.DONE, reason=decision.reason)
            case Verdict.JOIN:
                job = self._next or self._job
            case Verdict.BEGIN:
                job = self._begin(_Job(request.sender_endpoint, manifest))
            case Verdict.REPLACE:
                job = self._replace(_Job(request.sender_endpoint, manifest))
            case Verdict.QUEUE:
                job = self._queue(_Job(request.sender_endpoint, manifest))
        assert job is not None
        return await asyncio.shield(job.answer)

    async def close(self) -> None:
        """End what is under way and let go of the source."""
        for job in (self._job, self._next):
            if job is not None and job.task is not None:
                job.task.cancel()
                await asyncio.gather(job.task, return_exceptions=True)
        if self._source is not None:
            await self._source.close()

    def _begin(self, job: _Job) -> _Job:
        self._job = job
        job.task = asyncio.create_task(self._run(job))
        return job

    def _replace(self, job: _Job) -> _Job:
        old = self._job
        assert old is not None
        assert old.task is not None
        old.task.cancel()
        old.resolve(self._result(ok=True, reason=superseded(old.manifest.version, job.manifest.version)))
        return self._begin(job)

    def _queue(self, job: _Job) -> _Job:
        if self._next is not None:
            reason = superseded(self._next.manifest.version, job.manifest.version)
            self._next.resolve(self._result(ok=True, reason=reason))
        self._next = job
        return job

    async def _run(self, job: _Job) -> None:
        served: VersionState | None = None
        outcome: Outcome | AstraFlowError
        try:
            with boundary(WeightError, f"update to version {job.manifest.version}"):
                outcome, digest = await self._update(job)
            served = VersionState(number=outcome.version, digest=digest, verified=True)
        except _AwayError as error:
            outcome = self._away(str(error))
        except AstraFlowError as error:
            logger.error("%s stays at its version: %s", self.engine.model_id, error)
            self.last_error = str(error)
            outcome = error
        if self._job is not job:
            return  # replaced in the moment it ended; its announcer was told
        if served is not None:
            self.last_error = ""
            self._serves(self.engine.model_id, served)
        following, self._next = self._next, None
        if self.state.end(served) is not None and following is not None:
            self._begin(following)
        elif following is not None:
            following.resolve(self._result(ok=True, reason=f"version={following.manifest.version} is served"))
        job.resolve(outcome)

    async def _update(self, job: _Job) -> tuple[Outcome, str]:
        if self._source is None:
            self._source = self._make_source()
        payload = await self._pull(self._source, job.endpoint, job.manifest)
        self.state.swap()
        try:
            clock = await self._swap(payload)
        except WeightError as error:
            if payload.mode != "delta":
                raise
            # what the engine held was not the delta's base after all, or it took the delta wrongly
            logger.warning("%s did not take a delta, the full version follows: %s", self.engine.model_id, error)
            payload = await self._pull(self._source, job.endpoint, payload.manifest)
            clock = await self._swap(payload)
        result = self._result(
            ok=True,
            pulled=True,
            version=payload.manifest.version,
            pull_result={"mode": payload.mode, "bytes": payload.bytes},
            timing=clock.timing(),
        )
        self._note_served(payload, clock.timing(), clock.canary_gap)
        return result, payload.manifest.digest

    async def _pull(self, source: WeightSource, endpoint: str, manifest: Manifest) -> Payload:
        with self._spans.span("pull", model_id=self.engine.model_id, version=manifest.version):
            try:
                return await source.pull(endpoint, manifest)
            except (PeerError, DeadlineError) as error:
                raise _AwayError(f"the sender at {endpoint} cannot be reached: {error}") from error

    async def _swap(self, payload: Payload) -> _SwapClock:
        """Install and prove a payload between two decode steps; WeightError: the engine is what it was before."""
        clock, manifest = _SwapClock(payload), payload.manifest

        def install(weights: Weights) -> None:  # on the engine's thread
            clock.applying = perf_counter()
            payload.apply(weights)
            try:
                with boundary(WeightError, f"the canaries of version {manifest.version} cannot be scored"):
                    clock.canary_gap = self._canary_gap(manifest)
            except AstraFlowError:
                payload.rollback()
                raise
            clock.applied = perf_counter()

        try:
            with self._spans.span("swap", model_id=self.engine.model_id, version=manifest.version):
                await self.engine.update(manifest.version, install)
        except _CanaryError as error:
            self.state.alarms += 1
            self._alarm(manifest.version, str(error))
            raise WeightError(f"{error}; rolled back") from error
        finally:
            payload.release()
        return clock

    def _canary_gap(self, manifest: Manifest) -> float | None:
        """Mean |Δ logprob| to the trainer's; None where there is nothing to compare.

        _CanaryError where it is too large: right bytes, wrong results.
        """
        if not manifest.canaries or not isinstance(self.engine, Scorer):
            return None
        tokens = [canary.tokens for canary in manifest.canaries]
        gap = canary_gap(manifest.canaries, self.engine.score(tokens, manifest.canaries[0].temperature))
        if gap <= tolerance(manifest):
            return gap
        raise _CanaryError(
            f"version {manifest.version} is held bit for bit and computes something else: canaries are off by "
            f"{gap:.3g} nats on average, at most {tolerance(manifest)} is rounding"
        )

    def _away(self, reason: str) -> Outcome:
        """An answer, not a failure of ours: nothing is wrong here, and whoever announced the version tries again."""
        logger.warning("%s stays at its version: %s", self.engine.model_id, reason)
        self.last_error = reason
        return self._result(ok=False, reason=reason)

    def _alarm(self, version: int, reason: str) -> None:
        self.last_error = reason
        logger.error("alarm: %s: %s", self.engine.model_id, reason)
        if self._log is not None:
            self._log.alarm(self._name, self.engine.model_id, version, reason)

    def _note_served(self, payload: Payload, timing: dict[str, float], gap: float | None) -> None:
        """Remember a proven version; a new number on the old bytes is an alarm (LAW 18)."""
        manifest, served = payload.manifest, self.state.served
        moved = served is not None and served.number != manifest.version and not manifest.restored
        if served is not None and moved and served.digest == manifest.digest:
            self.state.alarms += 1
            reason = f"the version moved from {served.number} to {manifest.version}, the digest did not"
            self._alarm(manifest.version, reason)
        if self._log is not None:
            self._log.served(self._name, manifest, payload.mode, payload.bytes, timing, gap)

    def _result(self, *, version: int | None = None, pulled: bool = False, **fields: Any) -> Outcome:
        local = self.state.served.number if self.state.served is not None else -1
        return RaaSNotifyVersionResult(
            model_id=self.engine.model_id, version=local if version is None else version, pulled=pulled, **fields
        )


class _SwapClock:
    """When a swap asked for the engine, had it, was done with it."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._asked = perf_counter()
        self.applying = self._asked
        self.applied = self._asked
        self.canary_gap: float | None = None

    def timing(self) -> dict[str, float]:
        """Seconds: pull_s, verify_s (payload and engine), pause_s, load_s, resume_s."""
        return {
            **{key: self._payload.timing.get(key, 0.0) for key in ("pull_s", "verify_s")},
            "pause_s": self.applying - self._asked,
            "load_s": self.applied - self.applying,
            "resume_s": perf_counter() - self.applied,
        }
