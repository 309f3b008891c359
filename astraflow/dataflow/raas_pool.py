"""The live RaaS: who serves which verified version, who has room, who is gone.

Invariant 5, provenance: work goes only to an instance whose own digest of its version equals the manifest's. An
instance on an older verified version may keep working while it pulls (admission decides how far behind, by step).

Every registration has a key of its own ("uid#3"). A lease belongs to a key, so what a replaced or dead registration
held is told apart from what its successor holds. Room is what we gave out, not what an instance says it has left.

No IO and no clock: calls bring the time. `raas_link` performs what follows from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from astraflow.core.config.ids import why_no_id
from astraflow.core.protocol.http import is_address
from astraflow.core.protocol.messages import RegisterRaaSRequest
from astraflow.dataflow.farewells import Farewells
from astraflow.dataflow.policies import Published, PublishedVersions
from astraflow.dataflow.quarantine import Quarantine
from astraflow.dataflow.raas_speed import Speeds
from astraflow.errors import CallerError, InvariantError

FAILURES = 3
"""Calls in a row that fail before an instance is dead. The first makes it suspect."""

DEAD_KEPT = 16
"""The newest dead registrations, for people to see; where machines come and go, names of the dead have no end."""

DEFAULT_CONCURRENCY = 16
"""Groups at once for an instance that does not say."""


class Health(StrEnum):
    """What the pool thinks of an instance."""

    STARTING = "starting"
    """Registered; its workflows are not set up yet."""
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """A call failed, or heartbeats were missed: no new work until it gives a sign of life."""
    QUARANTINED = "quarantined"
    """It failed again and again: no new work for a while."""
    DRAINING = "draining"
    """Leaves once its leases have ended."""
    DEAD = "dead"
    """Its leases are back in the queue; a new registration brings it back."""


@dataclass(frozen=True)
class PoolRules:
    """When an instance is given up."""

    heartbeat_s: float = 5.0
    missed_heartbeats: int = 3
    quarantine_failures: int = 3
    quarantine_s: float = 60.0

    @property
    def silent_s(self) -> float:
        """Seconds without a sign of life after which an instance is suspect, and asked."""
        return self.heartbeat_s * self.missed_heartbeats


@dataclass
class Instance:
    """One registration of a RaaS."""

    key: str
    uid: str
    url: str
    gpu_count: int
    max_concurrency: int
    models: frozenset[str]
    incarnation: str
    """Differs when the process was started anew; empty where the RaaS does not say."""
    last_seen: float
    health: Health = Health.STARTING
    failure_count: int = 0
    inflight: int = 0
    reason: str = ""
    """Why it is not healthy."""
    shutdown: bool = False
    """Is told to end once it has left."""
    asked: bool = False
    """It missed its heartbeats and is asked whether it lives."""
    verified: dict[str, Published] = field(default_factory=dict)
    """model_id → the version it serves, its digest proved."""

    @property
    def available(self) -> int:
        """Groups it has room for."""
        return max(0, self.max_concurrency - self.inflight) if self.health is Health.HEALTHY else 0

    def describe(self, model_ids: Collection[str], epoch: float = 0.0, group_s: float | None = None) -> dict[str, Any]:
        """Its row of /raas_pool; epoch: what to add to the pool's clock for Unix time; group_s: its speed estimate."""
        serves = [self.verified.get(model_id) for model_id in model_ids]
        return {
            "uid": self.uid,
            "url": self.url,
            "version": min((p.version if p else -1 for p in serves), default=-1),
            "verified": bool(serves) and all(serves),
            "health": self.health.value,
            "inflight": self.inflight,
            "available": self.available,
            "max_concurrency": self.max_concurrency,
            "failure_count": self.failure_count,
            "gpu_count": self.gpu_count,
            "last_seen": self.last_seen + epoch,
            "group_s": group_s,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Registration:
    """What a registration did."""

    instance: Instance
    new: bool
    """False for a heartbeat."""
    replaced: Instance | None = None
    """The live registration of that uid which it ended."""


class RaaSPool:
    """All registrations, one a uid."""

    def __init__(
        self,
        model_ids: Collection[str],
        seats: Mapping[tuple[str, str], str] | None = None,
        registrations: int = 0,
        rules: PoolRules | None = None,
    ) -> None:
        """seats: (uid, incarnation) → key of RaaS that an earlier Dataflow knew; registrations: those it had made."""
        self.model_ids = tuple(model_ids)
        self.rules = rules or PoolRules()
        self.speeds = Speeds()
        self._quarantine = Quarantine(self.rules.quarantine_failures, self.rules.quarantine_s)
        self._farewells = Farewells(self.rules.silent_s)
        self._replaced = Farewells(self.rules.silent_s)
        """Processes whose uid another one took: while that one lives, they do not take it back."""
        self._seats = dict(seats or {})
        self._by_key: dict[str, Instance] = {}
        self._by_uid: dict[str, Instance] = {}
        self._dead: dict[str, None] = {}
        self.versions = PublishedVersions(model_ids)
        self._registrations = registrations
        # looked at with every result that comes back, so kept until something changes
        self._live: list[Instance] | None = None
        self._leaving: list[Instance] | None = None
        self._serving: list[Instance] | None = None
        self._roomy: dict[str, Instance] | None = None

    # ---- joining and leaving ---------------------------------------------------------------------------------------

    def register(self, request: RegisterRaaSRequest, now: float) -> Registration:
        """Add an instance, note a heartbeat, or replace the registration of a uid that was started anew.

        CallerError, and nothing registered, if its capabilities do not fit.
        """
        concurrency, models, incarnation = self._checked(request)
        known = self._by_uid.get(request.uid)
        same = known is not None and (known.url, known.incarnation) == (request.raas_url, incarnation)
        if known is not None and same and known.health is not Health.DEAD:
            known.last_seen, known.asked = now, False
            if known.max_concurrency != concurrency:
                known.max_concurrency = concurrency
                self._changed()
            if known.health is Health.SUSPECT and not known.failure_count:
                # it had refused work; after a failed call only a call that succeeds clears it
                self._turn(known, Health.HEALTHY)
            return Registration(known, new=False)
        self._registrations += 1
        instance = Instance(
            key=self._seats.pop((request.uid, incarnation), f"{request.uid}#{self._registrations}"),
            uid=request.uid,
            url=request.raas_url,
            gpu_count=request.gpu_count,
            max_concurrency=concurrency,
            models=frozenset(models),
            incarnation=incarnation,
            last_seen=now,
        )
        replaced = None
        self._replaced.forget(*_process(request.uid, request.raas_url, incarnation))
        if known is not None:
            if known.health is not Health.DEAD:
                replaced = known
            self._replaced.note(*_process(known.uid, known.url, known.incarnation), now)
            self.remove(known.key)
        self._by_key[instance.key] = self._by_uid[instance.uid] = instance
        self._changed()
        return Registration(instance, new=True, replaced=replaced)

    def _checked(self, request: RegisterRaaSRequest) -> tuple[int, list[str], str]:
        """max_concurrency, models and incarnation of a registration; CallerError names the field that does not fit."""
        if not request.uid:
            raise CallerError("uid is empty")
        if not is_address(request.raas_url):
            raise CallerError(f"raas_url {request.raas_url!r} is not an http address: http://host:port is expected")
        capabilities = request.capabilities
        concurrency = capabilities.get("max_concurrency", DEFAULT_CONCURRENCY)
        models = capabilities.get("models", list(self.model_ids))
        if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
            raise CallerError(f"capabilities.max_concurrency must be a positive integer, got {concurrency!r}")
        if not isinstance(models, list) or not all(isinstance(model_id, str) for model_id in models):
            raise CallerError(f"capabilities.models must be a list of names, got {models!r}")
        if not set(self.model_ids) <= set(models):
            raise CallerError(f"capabilities.models {models!r} lack one of {', '.join(self.model_ids)}")
        incarnation = str(capabilities.get("incarnation", ""))
        for name, ids in (("models", models), ("incarnation", [incarnation] if incarnation else [])):
            if why := next(filter(None, map(why_no_id, ids)), None):
                raise CallerError(f"capabilities.{name}: {why}")
        return concurrency, models, incarnation

    def prepared(self, key: str, now: float) -> None:
        """Its workflows are set up: it may get work, unless its name is in quarantine, or has died once too often."""
        instance = self._by_key.get(key)
        if instance is not None and instance.health is Health.STARTING:
            if self._quarantine.due(instance.uid) and self.serving:
                self._turn(instance, Health.QUARANTINED, self._quarantine.sentence(instance.uid, now))
            elif self._quarantine.holds(instance.uid, now):
                self._turn(instance, Health.QUARANTINED, "its predecessor failed again and again")
            else:
                self._turn(instance, Health.HEALTHY)

    def has_left(self, request: RegisterRaaSRequest, now: float) -> bool:
        """Is this a heartbeat of a process that left? One that still drains is heard as before."""
        incarnation = str(request.capabilities.get("incarnation", ""))
        left = self._farewells.holds(request.uid, request.raas_url, incarnation, now)
        known = self._by_uid.get(request.uid)
        return left and (known is None or known.health is not Health.DRAINING)

    def successor(self, request: RegisterRaaSRequest, now: float) -> Instance | None:
        """Who took a process's uid and lives: two processes of one uid must not evict each other for ever."""
        known = self._by_uid.get(request.uid)
        incarnation = str(request.capabilities.get("incarnation", ""))
        if known is None or known.health is Health.DEAD:
            return None
        if (known.url, known.incarnation) == (request.raas_url, incarnation):
            return None
        process = _process(request.uid, request.raas_url, incarnation)
        return known if self._replaced.holds(*process, now) else None

    def drain(self, uid: str, now: float, incarnation: str = "") -> Instance | None:
        """No new work, and its next heartbeats do not bring it back.

        None for an unknown uid, and where another incarnation than the given one has its place.
        """
        instance = self._by_uid.get(uid)
        if instance is None or (incarnation and instance.incarnation != incarnation):
            return None
        self._farewells.note(uid, instance.url, instance.incarnation, now)
        if instance.health is not Health.DEAD:
            self._turn(instance, Health.DRAINING, "it leaves")
        return instance

    def remove(self, key: str) -> None:
        """Forget a registration."""
        instance = self._by_key.pop(key, None)
        self._dead.pop(key, None)
        self.speeds.forget(key)
        self._changed()
        if instance is not None and self._by_uid.get(instance.uid) is instance:
            del self._by_uid[instance.uid]

    # ---- health ----------------------------------------------------------------------------------------------------

    def heard(self, key: str, now: float) -> None:
        """A call succeeded."""
        instance = self._by_key.get(key)
        if instance is None or instance.health is Health.DEAD:
            return
        instance.last_seen, instance.failure_count, instance.asked = now, 0, False
        if instance.health is Health.SUSPECT:
            self._turn(instance, Health.HEALTHY)

    def failed(self, key: str, reason: str) -> bool:
        """A call failed; True if that makes the instance dead."""
        instance = self._by_key.get(key)
        if instance is None or instance.health is Health.DEAD:
            return False
        instance.failure_count += 1
        instance.reason = reason
        if instance.failure_count >= FAILURES:
            self._die(instance)
            self._quarantine.failed(instance.uid, f"it died: {reason}")
            return True
        if instance.health is Health.HEALTHY:
            self._turn(instance, Health.SUSPECT, reason)
        return False

    def doubted(self, key: str) -> bool:
        """Has a call failed since the last one that succeeded?"""
        instance = self._by_key.get(key)
        return instance is not None and instance.failure_count > 0

    def lacking(self, key: str, served: Collection[str]) -> list[str]:
        """Models whose version was proved by an instance that now says to serve only these."""
        instance = self._by_key.get(key)
        return [] if instance is None else sorted(instance.verified.keys() - set(served))

    def missed(self, now: float) -> list[str]:
        """Suspect who missed its heartbeats; returns the keys of those that are to be asked whether they live."""
        late = [i for i in self.live if now - i.last_seen > self.rules.silent_s and not i.asked]
        for instance in late:
            instance.asked = True
            reason = f"no sign of life for {now - instance.last_seen:.0f} s"
            if instance.health is Health.HEALTHY:
                self._turn(instance, Health.SUSPECT, reason)
            else:
                instance.reason = reason
        return [instance.key for instance in late]

    def unanswered(self, key: str) -> bool:
        """It was asked and did not answer; True if that makes it dead (it may have been heard meanwhile)."""
        instance = self._by_key.get(key)
        if instance is None or instance.health is Health.DEAD or not instance.asked:
            return False
        self._die(instance)
        self._quarantine.failed(instance.uid, f"it died: {instance.reason}")
        return True

    # ---- failures of groups ----------------------------------------------------------------------------------------

    def group_succeeded(self, key: str, seconds: float | None, now: float) -> None:
        """A group of an instance came back with an episode, `seconds` after it was leased; None: not measured."""
        instance = self._by_key.get(key)
        if instance is not None:
            if seconds is not None:
                self.speeds.finished(key, seconds, now)
            self._quarantine.succeeded(instance.uid)

    def group_failed(self, key: str, reason: str, now: float) -> bool:
        """A group came back without one; True if that puts the instance in quarantine."""
        instance = self._by_key.get(key)
        if instance is None or not self._quarantine.failed(instance.uid, reason):
            return False
        if instance.health is not Health.HEALTHY or not any(i is not instance for i in self.serving):
            return False
        self._turn(instance, Health.QUARANTINED, self._quarantine.sentence(instance.uid, now))
        return True

    def pardon(self, now: float) -> list[str]:
        """End the terms that are over, and all of them where nobody else can work; returns the keys."""
        held = [i for i in self._by_key.values() if i.health is Health.QUARANTINED]
        needed = bool(held) and not self.serving
        free = [i for i in held if needed or not self._quarantine.holds(i.uid, now)]
        for instance in free:
            self._quarantine.release(instance.uid)
            self._turn(instance, Health.HEALTHY)
        return [instance.key for instance in free]

    def _changed(self) -> None:
        self._live = self._leaving = self._serving = self._roomy = None

    def _turn(self, instance: Instance, health: Health, reason: str = "") -> None:
        instance.health, instance.reason = health, reason
        self._changed()

    def _die(self, instance: Instance) -> None:
        self._turn(instance, Health.DEAD, instance.reason)
        instance.inflight = 0
        instance.verified = {}
        # in the order of their deaths: the newest is the last
        self._dead.pop(instance.key, None)
        self._dead[instance.key] = None
        if len(self._dead) > DEAD_KEPT:
            self.remove(next(iter(self._dead)))

    def exclude(self, key: str, reason: str) -> None:
        """It cannot do what this run asks: dead until it registers again."""
        instance = self._by_key.get(key)
        if instance is not None:
            instance.reason = reason
            self._die(instance)

    def refused(self, key: str, reason: str) -> None:
        """It took no work: none is offered until the next sign of life."""
        instance = self._by_key.get(key)
        if instance is not None and instance.health is Health.HEALTHY:
            self._turn(instance, Health.SUSPECT, reason)

    # ---- versions --------------------------------------------------------------------------------------------------

    def target(self, key: str) -> Published | None:
        """The version that an instance is to pull next; None where it has what it should."""
        instance = self._by_key.get(key)
        if instance is None or instance.health in (Health.DEAD, Health.DRAINING):
            return None
        for model_id in self.model_ids:
            wanted = self.versions.wanted(model_id, key)
            served = instance.verified.get(model_id)
            if wanted is not None and (served is None or served.version < wanted.version):
                return wanted
        return None

    def proved(self, key: str, model_id: str, version: int, digest: str) -> bool:
        """An instance says what it serves, by its own digest; False, and no work for it, unless the manifest agrees."""
        instance = self._by_key.get(key)
        published = self.versions.get(model_id, version)
        if instance is None or instance.health is Health.DEAD:
            return False
        if published is None or published.manifest.digest != digest:
            instance.verified.pop(model_id, None)
            self._changed()
            return False
        instance.verified[model_id] = published
        self._changed()
        return True

    def recovering(self, model_id: str) -> None:
        """A model's trainer was restored: work goes only to who serves, verified, what it announces next."""
        self.versions.forget(model_id)
        for instance in self._by_key.values():
            instance.verified.pop(model_id, None)
        self._changed()

    # ---- routing ---------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Instance | None:
        return self._by_key.get(key)

    @property
    def all(self) -> list[Instance]:
        return list(self._by_key.values())

    @property
    def live(self) -> list[Instance]:
        if self._live is None:
            self._live = [i for i in self._by_key.values() if i.health is not Health.DEAD]
        return self._live

    @property
    def serving(self) -> list[Instance]:
        """Those that may get work: healthy, with a verified version of every model."""
        if self._serving is None:
            self._serving = [
                i
                for i in self._by_key.values()
                if i.health is Health.HEALTHY and all(model_id in i.verified for model_id in self.model_ids)
            ]
        return self._serving

    @property
    def left(self) -> list[Instance]:
        """Those that leave and have nothing any more."""
        if self._leaving is None:
            self._leaving = [i for i in self._by_key.values() if i.health is Health.DRAINING]
        return [i for i in self._leaving if not i.inflight]

    @property
    def with_room(self) -> list[Instance]:
        """Those that may get work and have room for it."""
        if self._roomy is None:
            self._roomy = {i.key: i for i in self.serving if i.available}
        return list(self._roomy.values())

    def weights(self, instances: Collection[Instance], now: float) -> dict[str, float]:
        """key → places, weighed by measured speed."""
        return self.speeds.weights({i.key: i.max_concurrency for i in instances}, now)

    @property
    def max_concurrency(self) -> int:
        """Groups that all serving instances can run at once."""
        return sum(i.max_concurrency for i in self.serving)

    def take(self, key: str, groups: int) -> None:
        """Give out room; nothing for a registration that is not here (a replay has none)."""
        instance = self._by_key.get(key)
        if instance is not None:
            instance.inflight += groups
            self._room_changed(instance)

    def release(self, key: str, groups: int) -> None:
        """Leases ended; nothing for a registration that is dead or forgotten."""
        instance = self._by_key.get(key)
        if instance is not None and instance.health is not Health.DEAD:
            instance.inflight -= groups
            self._room_changed(instance)

    def _room_changed(self, instance: Instance) -> None:
        if self._roomy is None:
            return
        if instance.available and all(model_id in instance.verified for model_id in self.model_ids):
            self._roomy[instance.key] = instance
        else:
            self._roomy.pop(instance.key, None)

    def validate(self) -> None:
        """Raise InvariantError unless the indexes agree and nothing was given back twice or served unproved."""
        if {i.uid: i.key for i in self._by_key.values()} != {uid: i.key for uid, i in self._by_uid.items()}:
            raise InvariantError("the pool's indexes differ")
        for i in self._by_key.values():
            if (i.key in self._roomy if self._roomy is not None else False) > bool(i.available):
                raise InvariantError(f"RaaS {i.key} is said to have room, and has none")
            if i.inflight < 0 or (i.health is Health.DEAD and (i.inflight or i.verified)):
                raise InvariantError(f"RaaS {i.key}: {i.inflight} in flight, health {i.health}")


def _process(uid: str, url: str, incarnation: str) -> tuple[str, str, str]:
    """(uid, url, incarnation) by which a replaced process is known: at another address it is taken for another one."""
    return uid, url, f"{incarnation} at {url}" if incarnation else ""
