"""What a ledger keeps: an entry for each thing in flight, counters for what has ended, and a snapshot of all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from astraflow.core.data import LeaseId
from astraflow.dataflow.ledger_events import DropReason, GroupKey, State


class Entry(msgspec.Struct):
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
    shared: bool = False
    """Its occurrence gave other groups too."""
    samples: int = 0
    """From `ready` on; 0: all that were asked for."""
    only: GroupKey | None = None
    """Where set, the occurrence runs again for this group alone."""

    @property
    def lease(self) -> LeaseId:
        """Its lease, while it is leased."""
        return LeaseId(self.group_id, self.owner, self.leases)

    def holds(self, lease: LeaseId) -> bool:
        """Is this its lease? Attempt 0, of a log written before attempts were named, is whichever its owner has."""
        return self.state is State.LEASED and lease in (self.lease, LeaseId(self.group_id, self.owner, 0))


@dataclass
class Counters:
    """What LAW 30 compares."""

    issued: int = 0
    """Groups asked for; further groups of an occurrence count when it ends."""
    trained: int = 0
    """In the surviving lineage."""
    dropped: Counter[DropReason] = field(default_factory=Counter)
    states: Counter[State] = field(default_factory=Counter)
    """In flight, by state."""
    orphans: int = 0
    """Results from somebody who held no lease: ignored."""
    lost_leases: int = 0
    rewound: int = 0
    """Groups that were trained in a lineage which was left behind."""
    asked: int = 0
    """Occurrences issued: where the dataset's cursor is."""
    replayed: int = 0
    """Places of trained batches, in the surviving lineage, that groups took again on purpose."""

    @property
    def in_flight(self) -> int:
        return sum(self.states.values())


class LedgerSnapshot(msgspec.Struct, frozen=True):
    """All of a ledger. The entries are its own: encode it before the next event."""

    next_group_id: int
    trained: int
    dropped: dict[DropReason, int]
    orphans: int
    lost_leases: int
    rewound: int
    asked: int
    entries: list[Entry]
    queue: list[int]
    served: dict[str, list[int]]
    retained: dict[str, dict[int, list[Entry]]]
    replays: dict[str, list[int]] = {}
    replayed_at: dict[str, dict[int, int]] = {}
    replayed: int = 0
    settled: dict[str, int] = {}
