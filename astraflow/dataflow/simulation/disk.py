"""What outlives a simulated Dataflow: a ledger store in memory, with the same promises as the one on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from astraflow.core.data import Group, decode
from astraflow.dataflow.records import Arrived, Came, Item, Kept, Loaded, Record, Released, Snapshot, SnapshotTaken, Var
from astraflow.dataflow.store import LedgerStore

SLOW_COMMITS_S = (0.3, 0.8)
"""How long a commit takes, while the disk is slow."""


class Disk:
    """The committed items; `see` is shown each record in order."""

    def __init__(self, see: Callable[[Record], None]) -> None:
        self.snapshot: bytes | None = None
        self.records: list[Record] = []
        self.vars: dict[str, bytes] = {}
        self.groups: dict[int, Group] = {}
        self.arrivals: list[Came] = []
        self._see = see

    def copy(self) -> Disk:
        """Return a copy, as a backup of the file is."""
        other = Disk(self._see)
        other.snapshot, other.records, other.vars = self.snapshot, list(self.records), dict(self.vars)
        other.groups, other.arrivals = dict(self.groups), list(self.arrivals)
        return other

    def write(self, items: Iterable[Item]) -> None:
        for item in items:
            match item:
                case Kept():
                    self.groups[item.group.group_id] = item.group
                case Came():
                    self.arrivals.append(item)
                    self._add(Arrived(item.group_id))
                case Released():
                    for group_id in item.group_ids:
                        self.groups.pop(group_id, None)
                case Var():
                    self.vars[item.name] = item.value
                case SnapshotTaken():
                    self.snapshot, self.records = item.snapshot, []
                case _:
                    self._add(item)

    def _add(self, record: Record) -> None:
        self.records.append(record)
        self._see(record)


class SimulatedStore(LedgerStore):
    """One process's hold on the disk: after its death it writes no more."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._dead = False

    def die(self) -> None:
        """What is not committed by now never is."""
        self._dead = True

    def load(self) -> Loaded:
        snapshot = self._disk.snapshot
        return Loaded(None if snapshot is None else decode(snapshot, Snapshot), list(self._disk.records))

    def var(self, name: str) -> bytes | None:
        return self._disk.vars.get(name)

    def commit(self, items: Iterable[Item]) -> None:
        if not self._dead:
            self._disk.write(items)

    @property
    def kept(self) -> set[int]:
        return set(self._disk.groups)

    def read(self, group_id: int) -> Group | None:
        return self._disk.groups.get(group_id)

    def close(self) -> None:
        self._dead = True
