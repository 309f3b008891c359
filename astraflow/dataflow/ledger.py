"""Invariant 4, exactly once: every prompt occurrence moves

    queued → leased → done → ready → served → trained
                 ↘      ↘       ↘
                         dropped(reason)

and never any other way. An occurrence is queued or leased as one; when its rollout ends it becomes its groups (one per
model and agent role), and from `done` on each group moves by itself. A lease that is lost puts the occurrence back at
the head of the queue. What has ended leaves memory and stays in the counters, which agree at every moment (LAW 30):

    issued = trained + dropped by reason + in flight

Relied on by admission (credit follows `Moved`), by serving (idempotent batches) and by the pool (a dead instance's
leases). No IO and no clock: `handle(event)` returns what moved, so a durable store needs only to write events before
they are handled and to read them back in order. Trajectories are never in it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import assert_never

import msgspec

from astraflow.errors import InvariantError


class State(StrEnum):
    """Where an occurrence, or one of its groups, is."""

    QUEUED = "queued"
    """Issued; no RaaS works on it."""
    LEASED = "leased"
    """A RaaS has the right to work on it, until a deadline."""
    DONE = "done"
    """Its rollout ended; curation has not decided."""
    READY = "ready"
    """Worth training on; waits for a batch."""
    SERVED = "served"
    """In the batch of a step that is not acknowledged."""
    TRAINED = "trained"
    """Its batch was acknowledged. Final."""
    DROPPED = "dropped"
    """Ended without training, for a reason. Final."""


RUNNING = frozenset({State.QUEUED, State.LEASED})
ACCEPTED = frozenset({State.DONE, State.READY, State.SERVED, State.TRAINED})


class DropReason(StrEnum):
    """Why a group was not trained. Metrics reuse the words: `dropped/<reason>`."""

    INVALID = "invalid"
    """Fewer than min_group_size samples have a reward, or the record broke its own rules."""
    ZERO_ADVANTAGE = "zero_advantage"
    """All rewards are equal: no gradient."""
    STALE = "stale"
    """A token is older than the staleness bound at serving."""
    LINEAGE = "lineage"
    """A token's version is not one that this run published."""
    REJECTED = "rejected"
    """The workflow rejected the occurrence."""
    FAILED = "failed"
    """No episode gave a trajectory."""


class GroupKey(msgspec.Struct, frozen=True):
    """Which of an occurrence's groups: the policy and the agent role."""

    model_id: str
    agent: str = ""


class Issue(msgspec.Struct, frozen=True, tag=True):
    """A dataset row is asked for once; its group_id is the next one."""

    prompt_id: int
    epoch: int = 0


class Lease(msgspec.Struct, frozen=True, tag=True):
    """Queued occurrences go to one registration of a RaaS."""

    group_ids: tuple[int, ...]
    owner: str
    deadline: float
    """Time after which the lease is lost."""


class LoseLeases(msgspec.Struct, frozen=True, tag=True):
    """An owner gives leases back, or is gone (group_ids None: all of them)."""

    owner: str
    group_ids: tuple[int, ...] | None = None


class Expire(msgspec.Struct, frozen=True, tag=True):
    """Time passed: leases whose deadline is over are lost."""

    now: float


class Finish(msgspec.Struct, frozen=True, tag=True):
    """A leased occurrence ended at its owner, as these groups. Ignored, and counted, from anybody else."""

    group_id: int
    owner: str
    groups: tuple[GroupKey, ...]
    drop: DropReason | None = None
    """The reason where `groups` is empty."""


class Curate(msgspec.Struct, frozen=True, tag=True):
    """Curation decided on a group that is done."""

    group_id: int
    drop: DropReason | None = None


class Drop(msgspec.Struct, frozen=True, tag=True):
    """A ready group is not worth training on any more."""

    group_ids: tuple[int, ...]
    reason: DropReason


class Serve(msgspec.Struct, frozen=True, tag=True):
    """Ready groups are the batch that follows `version` of their model."""

    group_ids: tuple[int, ...]
    version: int


class Acknowledge(msgspec.Struct, frozen=True, tag=True):
    """A model's trainer has made a version of what it was served."""

    model_id: str


Event = Issue | Lease | LoseLeases | Expire | Finish | Curate | Drop | Serve | Acknowledge


@dataclass(frozen=True, slots=True)
class Moved:
    """One thing changed its state. An occurrence ends (after None) where its groups begin (before None)."""

    group_id: int
    before: State | None
    after: State | None
    model_id: str = ""
    """Empty for an occurrence: it counts for every model."""
    owner: str = ""
    """Whose lease began or ended with this move."""
    reason: DropReason | None = None


@dataclass(slots=True)
class Entry:
    """One occurrence or group in flight."""

    group_id: int
    prompt_id: int
    epoch: int
    state: State
    key: GroupKey | None = None
    """None before `done`."""
    owner: str = ""
    deadline: float = 0.0
    leases: int = 0
    """How often it was leased."""
    version: int = -1
    """The version whose batch it was served in."""


@dataclass
class Counters:
    """What LAW 30 compares."""

    issued: int = 0
    """Groups asked for; further groups of an occurrence count when it ends."""
    trained: int = 0
    dropped: Counter[DropReason] = field(default_factory=Counter)
    states: Counter[State] = field(default_factory=Counter)
    """In flight, by state."""
    orphans: int = 0
    """Results from somebody who held no lease: ignored."""
    lost_leases: int = 0

    @property
    def in_flight(self) -> int:
        return sum(self.states.values())


class Ledger:
    """The state of every occurrence. `first_group_id` continues the numbers of an earlier ledger."""

    def __init__(self, first_group_id: int = 1) -> None:
        self.counters = Counters()
        self._next = first_group_id
        self._entries: dict[int, Entry] = {}
        # ordered sets: what was lost goes back to the head, whatever its age
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._leased: dict[str, set[int]] = {}
        self._served: dict[str, list[int]] = {}

    def handle(self, event: Event) -> list[Moved]:
        """Apply one event; InvariantError, and nothing changed, if it is against the states."""
        match event:
            case Issue():
                return [self._issue(event)]
            case Lease():
                return self._lease(event)
            case LoseLeases():
                held = self._leased.get(event.owner, set())
                asked = held if event.group_ids is None else held.intersection(event.group_ids)
                return self._requeue(asked)
            case Expire():
                late = [
                    group_id
                    for held in self._leased.values()
                    for group_id in held
                    if self._entries[group_id].deadline <= event.now
                ]
                return self._requeue(late)
            case Finish():
                return self._finish(event)
            case Curate():
                self._expect((event.group_id,), State.DONE)
                return [self._drop(event.group_id, event.drop) if event.drop else self._ready(event.group_id)]
            case Drop():
                self._expect(event.group_ids, State.READY)
                return [self._drop(group_id, event.reason) for group_id in event.group_ids]
            case Serve():
                return self._serve(event)
            case Acknowledge():
                return self._acknowledge(event)
            case _:
                assert_never(event)

    def get(self, group_id: int) -> Entry | None:
        """What is known of a group in flight; None once it has ended. Not to be changed."""
        return self._entries.get(group_id)

    def queued(self, most: int) -> list[int]:
        """The next occurrences to lease, in order."""
        return list(islice(self._queue, most))

    def leased_to(self, owner: str) -> int:
        """Leases that an owner holds."""
        return len(self._leased.get(owner, ()))

    def validate(self) -> None:
        """Raise InvariantError unless all indexes and counters agree."""
        by_state = Counter(entry.state for entry in self._entries.values())
        c = self.counters
        checks = {
            "issued = trained + dropped + in flight": c.issued == c.trained + c.dropped.total() + len(self._entries),
            "state counters": +c.states == by_state,
            "queue": set(self._queue) == {g for g, e in self._entries.items() if e.state is State.QUEUED},
            "leases": {(g, o) for o, held in self._leased.items() for g in held}
            == {(g, e.owner) for g, e in self._entries.items() if e.state is State.LEASED},
            "served": sorted(g for served in self._served.values() for g in served)
            == sorted(g for g, e in self._entries.items() if e.state is State.SERVED),
            "groups have a model from done on": all(
                (e.key is None) == (e.state in RUNNING) for e in self._entries.values()
            ),
        }
        broken = [name for name, holds in checks.items() if not holds]
        if broken:
            raise InvariantError(f"the ledger is inconsistent: {'; '.join(broken)}")

    def _issue(self, event: Issue) -> Moved:
        entry = self._add(event.prompt_id, event.epoch, State.QUEUED)
        self._queue[entry.group_id] = None
        return Moved(entry.group_id, None, State.QUEUED)

    def _add(self, prompt_id: int, epoch: int, state: State, key: GroupKey | None = None) -> Entry:
        entry = Entry(self._next, prompt_id, epoch, state, key)
        self._next += 1
        self._entries[entry.group_id] = entry
        self.counters.issued += 1
        self.counters.states[state] += 1
        return entry

    def _lease(self, event: Lease) -> list[Moved]:
        self._expect(event.group_ids, State.QUEUED)
        moved = []
        for group_id in event.group_ids:
            del self._queue[group_id]
            entry = self._entries[group_id]
            entry.owner, entry.deadline = event.owner, event.deadline
            entry.leases += 1
            self._leased.setdefault(event.owner, set()).add(group_id)
            moved.append(self._move(entry, State.LEASED, owner=event.owner))
        return moved

    def _requeue(self, group_ids: set[int] | list[int]) -> list[Moved]:
        moved = []
        # the newest first, so that the oldest ends up at the head
        for group_id in sorted(group_ids, reverse=True):
            entry = self._entries[group_id]
            owner = self._end_lease(entry)
            self._queue[group_id] = None
            self._queue.move_to_end(group_id, last=False)
            self.counters.lost_leases += 1
            moved.append(self._move(entry, State.QUEUED, owner=owner))
        return moved

    def _finish(self, event: Finish) -> list[Moved]:
        entry = self._entries.get(event.group_id)
        if entry is None or entry.state is not State.LEASED or entry.owner != event.owner:
            self.counters.orphans += 1
            return []
        if not event.groups and event.drop is None:
            raise InvariantError(f"group {event.group_id} ended without groups and without a reason")
        owner = self._end_lease(entry)
        if not event.groups:
            return [self._drop(event.group_id, event.drop, owner)]
        moved = [Moved(entry.group_id, State.LEASED, None, owner=owner)]
        self.counters.states[State.LEASED] -= 1
        self.counters.states[State.DONE] += 1
        entry.state, entry.key = State.DONE, event.groups[0]
        moved.append(Moved(entry.group_id, None, State.DONE, entry.key.model_id))
        for key in event.groups[1:]:
            further = self._add(entry.prompt_id, entry.epoch, State.DONE, key)
            moved.append(Moved(further.group_id, None, State.DONE, key.model_id))
        return moved

    def _end_lease(self, entry: Entry) -> str:
        owner, entry.owner = entry.owner, ""
        held = self._leased[owner]
        held.remove(entry.group_id)
        if not held:
            del self._leased[owner]
        return owner

    def _ready(self, group_id: int) -> Moved:
        return self._move(self._entries[group_id], State.READY)

    def _drop(self, group_id: int, reason: DropReason | None, owner: str = "") -> Moved:
        if reason is None:
            raise InvariantError(f"group {group_id} is dropped without a reason")
        entry = self._entries.pop(group_id)
        self.counters.states[entry.state] -= 1
        self.counters.dropped[reason] += 1
        model_id = entry.key.model_id if entry.key else ""
        return Moved(group_id, entry.state, State.DROPPED, model_id, owner, reason)

    def _serve(self, event: Serve) -> list[Moved]:
        self._expect(event.group_ids, State.READY)
        models = {self._model_of(group_id) for group_id in event.group_ids}
        if len(models) != 1 or models & self._served.keys():
            raise InvariantError(f"version {event.version}: a batch of {sorted(models)} while one is not acknowledged")
        self._served[models.pop()] = list(event.group_ids)
        moved = []
        for group_id in event.group_ids:
            self._entries[group_id].version = event.version
            moved.append(self._move(self._entries[group_id], State.SERVED))
        return moved

    def _acknowledge(self, event: Acknowledge) -> list[Moved]:
        group_ids = self._served.pop(event.model_id, [])
        for group_id in group_ids:
            del self._entries[group_id]
        self.counters.states[State.SERVED] -= len(group_ids)
        self.counters.trained += len(group_ids)
        return [Moved(group_id, State.SERVED, State.TRAINED, event.model_id) for group_id in group_ids]

    def _move(self, entry: Entry, after: State, owner: str = "") -> Moved:
        before, entry.state = entry.state, after
        self.counters.states[before] -= 1
        self.counters.states[after] += 1
        return Moved(entry.group_id, before, after, entry.key.model_id if entry.key else "", owner)

    def _model_of(self, group_id: int) -> str:
        key = self._entries[group_id].key
        return key.model_id if key else ""

    def _expect(self, group_ids: tuple[int, ...], state: State) -> None:
        if len(set(group_ids)) != len(group_ids):
            raise InvariantError(f"groups {group_ids} are named twice in one event")
        for group_id in group_ids:
            entry = self._entries.get(group_id)
            if entry is None or entry.state is not state:
                found = "unknown or ended" if entry is None else entry.state
                raise InvariantError(f"group {group_id} is {found}, expected {state}")
