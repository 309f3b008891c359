"""What the durable log is made of. A commit is a list of items; the records among them are read back in order."""

from __future__ import annotations

import msgspec

from astraflow.core.data import Group
from astraflow.core.data.trajectory import GroupResult
from astraflow.core.protocol.messages import ReadyRequest
from astraflow.dataflow.curriculum import CurriculumState
from astraflow.dataflow.ledger import Event, LedgerSnapshot
from astraflow.dataflow.policies import PolicySnapshot


class TrainerReady(msgspec.Struct, frozen=True, tag=True):
    """A trainer registered, fresh or recovered."""

    request: ReadyRequest
    seen: int = -1
    """The highest number that RaaS were seen to have then: also of a version that was never announced."""


class Announced(msgspec.Struct, frozen=True, tag=True):
    """A version became current."""

    model_id: str
    version: int
    step: int
    digest: str


class Started(msgspec.Struct, frozen=True, tag=True):
    """A Dataflow began, the first one or one that goes on from the records before."""

    life: int


class Arrived(msgspec.Struct, frozen=True, tag=True):
    """What a RaaS returned for a leased occurrence is kept, the next one in `arrivals`."""

    group_id: int


class Attended(msgspec.Struct, frozen=True, tag=True):
    """A model's trainer is there, or absent while others are."""

    model_id: str
    present: bool


class Batched(msgspec.Struct, frozen=True, tag=True):
    """The batch of the groups that were served before this record."""

    model_id: str
    version: int
    digest: str
    """Of all its arrays, see Batch.digest."""


Record = Event | TrainerReady | Announced | Started | Arrived | Attended | Batched
"""What the log holds."""


class Snapshot(msgspec.Struct, frozen=True):
    """The state of everything that the log restores."""

    ledger: LedgerSnapshot
    policies: list[PolicySnapshot]
    curriculum: CurriculumState


class Kept(msgspec.Struct, frozen=True):
    """A group whose trajectories are to be kept."""

    group: Group


class Came(msgspec.Struct, frozen=True):
    """What a RaaS returned, to be kept for a replay; `Arrived` is its record."""

    group_id: int
    result: GroupResult | None


class Released(msgspec.Struct, frozen=True):
    """Groups whose trajectories nobody needs any more."""

    group_ids: tuple[int, ...]


class Var(msgspec.Struct, frozen=True):
    """A value of which only the newest counts."""

    name: str
    value: bytes


class SnapshotTaken(msgspec.Struct, frozen=True):
    """The state after all records before, encoded."""

    snapshot: bytes


Item = Record | Kept | Came | Released | Var | SnapshotTaken
"""What a commit is made of, in order."""


class Loaded(msgspec.Struct, frozen=True):
    """What an earlier process left: the newest snapshot and the records after it."""

    snapshot: Snapshot | None
    records: list[Record]
