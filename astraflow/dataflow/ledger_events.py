"""What the ledger speaks of: states, reasons, the events that change them and the moves that follow.

Events are all that a durable log holds (see `journal`): plain tagged structs, small, without trajectories.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from astraflow.core.data import LeaseId


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
    """A token's version is not one that this run published, or that a recovery left behind."""
    REJECTED = "rejected"
    """The workflow rejected the occurrence."""
    FAILED = "failed"
    """No episode gave a trajectory."""
    ABSENT = "absent"
    """Its policy's trainer is gone, and others go on."""
    LENGTH = "length"
    """Its longest trajectory is shorter or longer than `buffer.length` lets pass."""
    DUPLICATE = "duplicate"
    """Another group of the same prompt waits for a batch."""
    EVICTED = "evicted"
    """It was next when the full buffer (`buffer.max_groups`) took one more."""


class GroupKey(msgspec.Struct, frozen=True):
    """Which of an occurrence's groups: the policy and the agent role."""

    model_id: str
    agent: str = ""


class Issue(msgspec.Struct, frozen=True, tag=True):
    """A dataset row is asked for once; its group_id is the next one."""

    prompt_id: int
    epoch: int = 0


class Lease(msgspec.Struct, frozen=True, tag=True):
    """Queued occurrences go to one registration of a RaaS: of each, the attempt after its last one."""

    group_ids: tuple[int, ...]
    owner: str
    deadline: float
    """Time after which the lease is lost, by the clock of the process that recorded it: of no meaning to another."""


class LoseLeases(msgspec.Struct, frozen=True, tag=True):
    """An owner gives leases back, or is gone (group_ids None: all of them). Those it does not hold are passed over."""

    owner: str
    group_ids: tuple[int, ...] | None = None
    attempts: tuple[int, ...] = ()
    """Of each of these groups; empty in a log that is older than them."""

    @classmethod
    def of(cls, owner: str, leases: Iterable[LeaseId]) -> LoseLeases:
        """An owner gives these back."""
        given = [lease for lease in leases if lease.owner == owner]
        return cls(owner, tuple(lease.group_id for lease in given), tuple(lease.attempt for lease in given))

    @property
    def leases(self) -> list[LeaseId]:
        """Those that it names."""
        group_ids = self.group_ids or ()
        return [
            LeaseId(g, self.owner, a) for g, a in zip(group_ids, self.attempts or (0,) * len(group_ids), strict=True)
        ]


class Expire(msgspec.Struct, frozen=True, tag=True):
    """Time passed: leases whose deadline is over are lost. Only old logs have it: now LoseLeases names the leases."""

    now: float


class Visit(msgspec.Struct, frozen=True):
    """How a rollout of a prompt went: what prompts are chosen by later."""

    success: float
    """Share of right samples, 0 to 1."""
    equal: bool
    """All rewards are equal."""


class Finish(msgspec.Struct, frozen=True, tag=True):
    """A leased occurrence ended at its owner, as these groups. Of another lease than the current one it is an orphan:
    ignored, and counted."""

    group_id: int
    owner: str
    groups: tuple[GroupKey, ...]
    drop: DropReason | None = None
    """The reason where `groups` is empty."""
    visit: Visit | None = None
    """Nothing in the ledger depends on it; None where no sample has a reward."""
    attempt: int = 0
    """0 in a log that is older than this field."""

    @property
    def lease(self) -> LeaseId:
        """What ended."""
        return LeaseId(self.group_id, self.owner, self.attempt)


class Orphan(msgspec.Struct, frozen=True, tag=True):
    """A result came of a lease that is not, or no longer, its group's: counted, and nothing else."""

    group_id: int
    owner: str
    attempt: int


class Curate(msgspec.Struct, frozen=True, tag=True):
    """Curation decided on a group that is done."""

    group_id: int
    drop: DropReason | None = None
    length: int = 0
    """Sampled tokens of its longest trajectory: nothing depends on it, the audit shows who was lost by it."""
    samples: int = 0
    """Samples that it has; 0: all that were asked for."""


class Drop(msgspec.Struct, frozen=True, tag=True):
    """A ready group is not worth training on any more."""

    group_ids: tuple[int, ...]
    reason: DropReason


class Serve(msgspec.Struct, frozen=True, tag=True):
    """Ready groups are the batch that follows `version` of their model."""

    group_ids: tuple[int, ...]
    version: int
    replayed: tuple[int, ...] = ()
    """Groups trained by earlier steps, not settled, that are in it again on purpose: counted apart."""


class Acknowledge(msgspec.Struct, frozen=True, tag=True):
    """A model's trainer has made a version of what it was served."""

    model_id: str
    step: int = -1
    """The training step; -1: it can never be taken back."""


class Rewind(msgspec.Struct, frozen=True, tag=True):
    """A model's trainer was restored after `step`: what it was served or has trained since is ready again."""

    model_id: str
    step: int


class Requeue(msgspec.Struct, frozen=True, tag=True):
    """Finished groups cannot be trained as they are, by nobody's fault: their occurrences run again."""

    group_ids: tuple[int, ...]


class Settle(msgspec.Struct, frozen=True, tag=True):
    """A model's steps up to `step` are never taken back: a checkpoint holds them, or they are too long ago."""

    model_id: str
    step: int


Event = (
    Issue
    | Lease
    | LoseLeases
    | Expire
    | Finish
    | Orphan
    | Curate
    | Drop
    | Serve
    | Acknowledge
    | Rewind
    | Requeue
    | Settle
)


@dataclass(frozen=True, slots=True)
class Moved:
    """One thing changed its state. An occurrence ends (after None) where its groups begin (before None).

    A replay begins as served: it takes a place of its batch, which admission counts, and changes no state.
    """

    group_id: int
    before: State | None
    after: State | None
    model_id: str = ""
    """Empty for an occurrence: it counts for every model."""
    owner: str = ""
    """Whose lease began or ended with this move."""
    reason: DropReason | None = None
    samples: int = 0
    """What its group has, from `ready` on; 0: all that were asked for."""
