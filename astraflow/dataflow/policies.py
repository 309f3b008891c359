"""The policies of a run: who trains each, which versions it published, and at which step it stands.

A request that contradicts what is known is refused before anything changes. Numbers never repeat (invariant 5): a
version is announced once, with one digest; the same announcement again is a retry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from astraflow.core.data import Manifest
from astraflow.core.protocol.messages import NotifyVersionRequest, ReadyRequest
from astraflow.dataflow.staleness import VersionSteps
from astraflow.errors import CallerError, ConflictError

KEPT_VERSIONS = 8
"""Versions of a model whose manifests are remembered."""


MOST_SKIPPED = 1 << 16
"""Version numbers that an announcement may leave out: the step of each is remembered."""

MOST_REPLACED = 16
"""Trainers of a model that are known when they come again, though another has taken their place."""


class Stage(StrEnum):
    """Where a policy's trainer is in its life. Whether it is absent meanwhile is known by `attendance`.

    awaited ──/ready──► ready ──/notify_version──► announced ──/notify_version──┐
                          ▲                         │      ▲◄──────────────────┘
                     (the same again)               │      │ /notify_version
                                                /ready at a step
                                                    ▼      │
                                                 restored ─┘  (the same again; at another step)
    """

    AWAITED = "awaited"
    """No trainer has called /ready."""
    READY = "ready"
    """A fresh one has; its version 0 is not announced."""
    RESTORED = "restored"
    """One is back at a step; what it was restored to is not announced, so nothing can be rolled out."""
    ANNOUNCED = "announced"
    """It has a current version."""


class Published(msgspec.Struct, frozen=True):
    """A version that RaaS can pull."""

    model_id: str
    version: int
    step: int
    """The training step that made it."""
    sender_endpoint: str
    manifest: Manifest


class PublishedVersions:
    """The newest versions of every model, and which of them RaaS are to pull."""

    def __init__(self, model_ids: Iterable[str]) -> None:
        self._by_model: dict[str, dict[int, Published]] = {model_id: {} for model_id in model_ids}
        self._pinned: dict[str, Published] = {}
        self._holders: frozenset[str] | None = None
        self._seen: dict[str, int] = {}

    def saw(self, model_id: str, version: int) -> None:
        """A RaaS has this number, which may not be announced yet. One that is far off is no number of ours."""
        newest = self.newest(model_id)
        if version <= (0 if newest is None else newest.version) + MOST_SKIPPED:
            self._seen[model_id] = max(version, self.seen(model_id))

    def seen(self, model_id: str) -> int:
        """The highest number that a RaaS was seen to have; -1 for none."""
        return self._seen.get(model_id, -1)

    def publish(self, published: Published) -> None:
        """A version is current."""
        versions = self._by_model[published.model_id]
        versions[published.version] = published
        while len(versions) > KEPT_VERSIONS:
            del versions[min(versions)]

    def get(self, model_id: str, version: int) -> Published | None:
        """A version that was announced, not long ago."""
        return self._by_model[model_id].get(version)

    def newest(self, model_id: str) -> Published | None:
        versions = self._by_model[model_id]
        return versions[max(versions)] if versions else None

    def wanted(self, model_id: str, key: str) -> Published | None:
        """The version that an instance is to pull: the pinned one where it holds that, else the newest."""
        pinned = self._pinned.get(model_id) if self._holders is None or key in self._holders else None
        return pinned or self.newest(model_id)

    def pin(self, versions: Iterable[Published], holders: Iterable[str] | None = None) -> None:
        """Until `unpin`, these versions are wanted and no newer ones (evaluation); holders None: by every instance."""
        self._pinned = {published.model_id: published for published in versions}
        self._holders = None if holders is None else frozenset(holders)

    @property
    def holders(self) -> frozenset[str] | None:
        """Keys of the instances that hold the pinned versions; None: all do."""
        return self._holders

    def unpin(self) -> None:
        self._pinned, self._holders = {}, None

    def forget(self, model_id: str) -> None:
        """Its sender is gone: nothing is wanted until the next version is announced."""
        self._by_model[model_id] = {}
        self._pinned.pop(model_id, None)


class PolicySnapshot(msgspec.Struct, frozen=True):
    """What a policy is restored from, with the manifest of its current version."""

    model_id: str
    ready: ReadyRequest | None
    steps: list[int]
    highest: int
    current: int
    """Version number; -1 for none."""
    replaced: list[str] = []
    """Incarnations of trainers whose place another has taken."""


@dataclass
class Policy:
    """One model of the run."""

    model_id: str
    n_samples: int
    """Samples of a group."""
    batch_groups: int = 0
    """B, groups of a step; 0 before its trainer is ready."""
    steps: VersionSteps = field(default_factory=VersionSteps)
    current: Published | None = None
    previous: Published | None = None
    """The newest version of the lineage that a restored trainer has left, until it announces its first one: what RaaS
    serve if it never does."""
    ready: ReadyRequest | None = None
    highest: int = -1
    """The highest number seen, of any lineage: the next one is above it."""
    replaced: dict[str, None] = field(default_factory=dict)
    """The newest incarnations of trainers whose place another has taken: what they asked and comes late is over."""

    @property
    def stage(self) -> Stage:
        """Where its trainer is."""
        if self.current is not None:
            return Stage.ANNOUNCED
        if self.ready is None:
            return Stage.AWAITED
        return Stage.READY if self.ready.recovered_step is None else Stage.RESTORED

    @property
    def step(self) -> int:
        """v, the last trained step."""
        if self.current is not None:
            return self.current.step
        return (self.ready.recovered_step or 0) if self.ready else 0

    @property
    def next_version(self) -> int:
        """The number of the next version that its trainer publishes."""
        return max(self.highest, 0) + 1

    @property
    def version(self) -> int:
        """The newest version; -1 before the first."""
        return self.current.version if self.current else -1


class Policies:
    """The models that the run's configuration names. No other can register."""

    def __init__(self, n_samples: Mapping[str, int]) -> None:
        self._policies = {model_id: Policy(model_id, n) for model_id, n in n_samples.items()}

    @property
    def all(self) -> list[Policy]:
        return list(self._policies.values())

    def get(self, model_id: str) -> Policy:
        """The policy of that name; ConflictError lists the known ones."""
        policy = self._policies.get(model_id)
        if policy is None:
            raise ConflictError(f"unknown model_id '{model_id}'; known: {', '.join(sorted(self._policies))}")
        return policy

    def trained(self, model_id: str) -> Policy:
        """The policy of that name, whose trainer is ready; ConflictError otherwise."""
        policy = self.get(model_id)
        if policy.ready is None:
            raise ConflictError(f"no trainer of '{model_id}' has called /ready")
        return policy

    def unannounced(self, absent: Collection[str] = ()) -> list[str]:
        """The policies without a version that can be rolled out, but for those whose trainers are absent."""
        return [p.model_id for p in self._policies.values() if p.current is None and p.model_id not in absent]

    def make_ready(self, request: ReadyRequest) -> int:
        """Register a trainer; returns the number of the next version it will publish. Errors as of `check_ready`."""
        self.check_ready(request)
        if not self.is_retry(request):
            self.replay_ready(request)
        return self.get(request.model_id).next_version

    def check_ready(self, request: ReadyRequest) -> None:
        """Raise an error where a trainer may not register so; nothing is changed.

        A recovered trainer takes the place of the one before; otherwise ConflictError where another is registered.
        CallerError for a batch size that groups do not divide or a manifest that does not belong.
        """
        policy = self.get(request.model_id)
        recovering = request.recovered_step is not None
        if policy.ready is not None and not recovering and not _same(policy.ready, request):
            raise ConflictError(f"another trainer of '{request.model_id}' is registered; nothing was changed")
        if recovering and policy.ready == request and request.incarnation and policy.stage is Stage.ANNOUNCED:
            raise ConflictError(
                f"this trainer of '{request.model_id}' has announced a version since: what it asked before is over"
            )
        if request.incarnation in policy.replaced:
            raise ConflictError(f"another trainer of '{request.model_id}' has taken this one's place: it is over")
        if request.train_batch_size < 1 or request.train_batch_size % policy.n_samples:
            raise CallerError(
                f"train_batch_size {request.train_batch_size} is not a multiple of n_samples {policy.n_samples}"
            )
        if recovering == (request.manifest is not None):
            raise CallerError("a fresh trainer gives the manifest of version 0, a recovered one a step and no manifest")
        if request.manifest is not None:
            _fits(request.manifest, request.model_id, 0)
        if request.recovered_version < 0 or (request.recovered_step or 0) < 0:
            raise CallerError("recovered_version and recovered_step cannot be negative")
        _near(request.recovered_version, policy)

    def is_retry(self, request: ReadyRequest) -> bool:
        """Was this registration made already? A trainer that was restored at one state twice asks the same twice."""
        policy = self.get(request.model_id)
        if policy.ready is None or request.recovered_step is None:
            return policy.ready is not None and _same(policy.ready, request)
        return policy.ready == request and policy.stage is Stage.RESTORED

    def replay_ready(self, request: ReadyRequest, seen: int = -1) -> None:
        """A trainer registered, now or as the log says. A restored one abandons the versions of later steps.

        seen: the highest number that RaaS had of its predecessor, announced or not. The same again changes nothing.
        """
        policy = self.get(request.model_id)
        if policy.ready is not None and policy.ready.incarnation not in ("", request.incarnation):
            policy.replaced[policy.ready.incarnation] = None
            if len(policy.replaced) > MOST_REPLACED:
                del policy.replaced[next(iter(policy.replaced))]
        policy.ready = request
        policy.batch_groups = request.train_batch_size // policy.n_samples
        if request.recovered_step is not None:
            policy.steps.abandon(request.recovered_step)
            policy.highest = max(policy.highest, request.recovered_version, seen)
            policy.previous, policy.current = policy.current or policy.previous, None

    def replay_announced(self, model_id: str, version: int, step: int, current: Published | None) -> None:
        """A version became current, now or as the log says; `current` has its manifest, where it is the newest."""
        policy = self.get(model_id)
        policy.steps.publish(version, step)
        policy.current, policy.previous = current, None
        policy.highest = version

    def snapshot(self) -> list[PolicySnapshot]:
        """All that `restore` needs, but for manifests."""
        return [
            PolicySnapshot(p.model_id, p.ready, p.steps.listed(), p.highest, p.version, list(p.replaced))
            for p in self.all
        ]

    def restore(self, snapshot: PolicySnapshot, published: Published | None) -> None:
        """Put a policy back; `published` is the version that was announced last, of whatever lineage."""
        policy = self.get(snapshot.model_id)
        if snapshot.ready is not None:
            policy.ready = snapshot.ready
            policy.batch_groups = snapshot.ready.train_batch_size // policy.n_samples
        # in place: curation and serving hold the same steps
        policy.steps.restore(snapshot.steps)
        policy.highest = snapshot.highest
        policy.replaced = dict.fromkeys(snapshot.replaced)
        if snapshot.current >= 0:
            policy.current = published
        else:
            policy.previous = published

    def announce(self, request: NotifyVersionRequest, *, served: bool) -> Published | None:
        """Make a version current; None where it is current already (a retry).

        served: a batch waits for acknowledgement. ConflictError where number, step or digest contradict what is known;
        CallerError without a manifest, or where the number is far beyond the highest one.
        """
        policy = self.trained(request.model_id)
        manifest = request.manifest
        if manifest is None and request.version == 0 and policy.ready is not None:
            manifest = policy.ready.manifest
        current = policy.current
        if current is not None and request.version == current.version:
            if request.step != current.step or (manifest and manifest.digest != current.manifest.digest):
                raise ConflictError(
                    f"version {request.version} of '{request.model_id}' was announced with another step or digest"
                )
            return None
        self._follows(policy, request, served)
        if manifest is None:
            raise CallerError(f"version {request.version} of '{request.model_id}' has no manifest")
        _fits(manifest, request.model_id, request.version)
        assert policy.ready is not None
        published = Published(request.model_id, request.version, request.step, policy.ready.sender_endpoint, manifest)
        self.replay_announced(request.model_id, request.version, request.step, published)
        return published

    def _follows(self, policy: Policy, request: NotifyVersionRequest, served: bool) -> None:
        name = f"'{policy.model_id}'"
        if request.version <= policy.highest:
            raise ConflictError(f"version {request.version} of {name} goes back: {policy.highest} is current")
        _near(request.version, policy)
        if request.step not in (policy.step, policy.step + 1):
            raise ConflictError(f"step {request.step} of {name} does not follow step {policy.step}")
        if request.step == policy.step + 1 and not served:
            raise ConflictError(f"step {request.step} of {name} was trained on no batch: none is served")


def _same(one: ReadyRequest, other: ReadyRequest) -> bool:
    """Do they say the same, from whichever process?"""
    return msgspec.structs.replace(one, incarnation=other.incarnation) == other


def _near(version: int, policy: Policy) -> None:
    most = policy.highest + MOST_SKIPPED
    if version > most:
        raise CallerError(
            f"version {version} of '{policy.model_id}' is too far from the highest number so far, {policy.highest}: "
            f"at most {most} can follow it"
        )


def _fits(manifest: Manifest, model_id: str, version: int) -> None:
    if (manifest.model_id, manifest.version) != (model_id, version):
        raise CallerError(
            f"the manifest is of version {manifest.version} of '{manifest.model_id}', "
            f"expected {version} of '{model_id}'"
        )
    manifest.check()
