"""The durable ledger: every event in order, in an SQLite database (WAL), with payloads in segment files beside it.

    <run_dir>/ledger/ledger.db     log(seq, records)            events in order, one row a commit
                                   snapshots(seq, snapshot)     the state after a row, so that few rows are read back
                                   payloads(group_id, …)        where each group's trajectories lie
                                   arrivals(number, …)          what RaaS returned, in order, for a replay
                                   vars(name, value)            what is only needed in its newest form
    <run_dir>/ledger/segments/     the payloads

A commit is one transaction: whoever reads sees all of it or nothing. It survives the death of the process; with
`fsync` also of the machine. The log is never cut: `astraflow audit` proves from it what became of every occurrence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from astraflow.core.data import Group, decode, encode
from astraflow.dataflow.records import Arrived, Came, Item, Kept, Loaded, Record, Released, Snapshot, SnapshotTaken, Var
from astraflow.dataflow.segments import Ref, Segments
from astraflow.errors import DataError

DATABASE = "ledger.db"

_TABLES = """
CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, records BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, snapshot BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS payloads (
  group_id INTEGER PRIMARY KEY, segment INTEGER, "offset" INTEGER, length INTEGER, checksum INTEGER
);
CREATE TABLE IF NOT EXISTS arrivals (
  number INTEGER PRIMARY KEY, group_id INTEGER, segment INTEGER, "offset" INTEGER, length INTEGER, checksum INTEGER
);
CREATE TABLE IF NOT EXISTS vars (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""

_REF = 'segment, "offset", length, checksum'


class LedgerStore:
    """One ledger on disk; used from one thread at a time."""

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        """Open or create. DataError where the directory holds something else."""
        directory.mkdir(parents=True, exist_ok=True)
        self._fsync = fsync
        # opened where the program starts, used where commits are made
        self._database = sqlite3.connect(directory / DATABASE, isolation_level=None, check_same_thread=False)
        with _attributed(directory):
            self._database.executescript("PRAGMA journal_mode = WAL;" + _TABLES)
            self._database.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
            self._seq: int = self._database.execute("SELECT coalesce(max(seq), 0) FROM log").fetchone()[0]
            self._refs = {row[0]: Ref(*row[1:]) for row in self._database.execute("SELECT * FROM payloads")}
            arrivals = [Ref(*row) for row in self._database.execute(f"SELECT {_REF} FROM arrivals")]
        self._segments = Segments(directory / "segments", [*self._refs.values(), *arrivals])

    def load(self) -> Loaded:
        """The state that was committed last."""
        row = self._database.execute("SELECT seq, snapshot FROM snapshots ORDER BY seq DESC LIMIT 1").fetchone()
        seq, snapshot = (0, None) if row is None else (row[0], decode(row[1], Snapshot))
        rows = self._database.execute("SELECT records FROM log WHERE seq > ? ORDER BY seq", (seq,))
        return Loaded(snapshot, [record for (blob,) in rows for record in _records(blob)])

    def var(self, name: str) -> bytes | None:
        """The newest value of a name."""
        row = self._database.execute("SELECT value FROM vars WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def commit(self, items: Iterable[Item]) -> None:
        """Make these items durable, all or none."""
        records: list[Record] = []
        released: list[int] = []
        with self._database as transaction:
            transaction.execute("BEGIN")
            for item in items:
                match item:
                    case Kept():
                        ref = self._refs[item.group.group_id] = self._segments.append(encode(item.group))
                        row = (item.group.group_id, ref.segment, ref.offset, ref.length, ref.checksum)
                        transaction.execute("INSERT OR REPLACE INTO payloads VALUES (?, ?, ?, ?, ?)", row)
                    case Came():
                        ref = self._segments.append(encode(item))
                        row = (item.group_id, ref.segment, ref.offset, ref.length, ref.checksum)
                        transaction.execute(f"INSERT INTO arrivals (group_id, {_REF}) VALUES (?, ?, ?, ?, ?)", row)
                        records.append(Arrived(item.group_id))
                    case Released():
                        released += [group_id for group_id in item.group_ids if group_id in self._refs]
                    case Var():
                        transaction.execute("INSERT OR REPLACE INTO vars VALUES (?, ?)", (item.name, item.value))
                    case SnapshotTaken():
                        records = self._write(transaction, records)
                        transaction.execute("DELETE FROM snapshots")
                        transaction.execute("INSERT INTO snapshots VALUES (?, ?)", (self._seq, item.snapshot))
                    case _:
                        records.append(item)
            self._write(transaction, records)
            transaction.executemany("DELETE FROM payloads WHERE group_id = ?", ((g,) for g in released))
            # what a committed row refers to is in its file
            self._segments.flush(self._fsync)
        self._segments.release(self._refs.pop(group_id) for group_id in released if group_id in self._refs)

    @property
    def kept(self) -> set[int]:
        """Groups whose trajectories are there."""
        return set(self._refs)

    def read(self, group_id: int) -> Group | None:
        """A group that was kept; None where it was not. DataError where its bytes are damaged."""
        ref = self._refs.get(group_id)
        return None if ref is None else decode(self._segments.read(ref), Group)

    def close(self) -> None:
        self._segments.close()
        self._database.close()

    def _write(self, transaction: sqlite3.Connection, records: Sequence[Record]) -> list[Record]:
        if records:
            self._seq += 1
            transaction.execute("INSERT INTO log VALUES (?, ?)", (self._seq, encode(records)))
        return []


def read_log(directory: Path) -> Iterable[Record]:
    """Every record of a ledger from its beginning, also while a process writes to it. DataError where there is none."""
    path = directory / DATABASE
    if not path.is_file():
        raise DataError(f"{directory} holds no ledger: was dataflow.ledger.durable false?")
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        with _attributed(directory):
            for (blob,) in database.execute("SELECT records FROM log ORDER BY seq"):
                yield from _records(blob)
    finally:
        database.close()


def read_arrivals(directory: Path) -> Iterator[Came]:
    """What RaaS returned, in order. DataError where its bytes are damaged."""
    segments = Segments(directory / "segments", reading=True)
    database = sqlite3.connect(f"file:{directory / DATABASE}?mode=ro", uri=True)
    try:
        with _attributed(directory):
            for row in database.execute(f"SELECT {_REF} FROM arrivals ORDER BY number"):
                yield decode(segments.read(Ref(*row)), Came)
    finally:
        database.close()


def _records(blob: bytes) -> list[Record]:
    return cast(list[Record], decode(blob, cast(Any, list[Record])))


@contextmanager
def _attributed(directory: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise DataError(f"the ledger in {directory} cannot be read: {error}") from error
