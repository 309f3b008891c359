"""A run's decisions, made again: the real service is given what came from outside, and must decide the same.

From outside came, says the log: trainers (TrainerReady, Announced, the moment of each Serve), what RaaS returned
(Arrived), leases given and lost, time. All else in it is a decision: which row is asked for, what becomes of a finished
group, what is too old, which groups make a batch, and that batch to the last bit. Each is compared as it is made; the
first that differs ends the replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from astraflow.core.config import read_settings
from astraflow.core.data import Group, Manifest
from astraflow.core.data.trajectory import Row
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import RaaSClient
from astraflow.core.protocol import messages as m
from astraflow.core.text.tokenizer import load_tokenizer
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.journal import Durable
from astraflow.dataflow.ledger import Expire, Finish, Issue, Lease, LoseLeases, Orphan, Serve, Settle
from astraflow.dataflow.past import Seat
from astraflow.dataflow.records import (
    Announced,
    Arrived,
    Attended,
    Batched,
    Came,
    Item,
    Kept,
    Record,
    Released,
    SnapshotTaken,
    Started,
    TrainerReady,
    Var,
)
from astraflow.dataflow.rows import load_rollout_rows
from astraflow.dataflow.service import AstraFlow
from astraflow.dataflow.simulation.clock import VirtualLoop, run
from astraflow.dataflow.simulation.disk import Disk, SimulatedStore
from astraflow.dataflow.store import LedgerStore, read_arrivals, read_log
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.errors import AstraFlowError, DataError

Rows = Sequence[Row] | Mapping[str, Sequence[Row]]
"""Of the rollout datasets by name, or of the only one."""

MOST_SHOWN = 300
"""Characters of a record that a difference shows."""


class Replayed(msgspec.Struct, frozen=True):
    """What a replay derived."""

    records: int
    """In the log."""
    followed: int
    """Of them: made again, equal."""
    batches: list[Batched]
    """Made again, equal."""
    difference: str | None
    """The first record that was not made again; None where all were."""


def replay_run(directory: Path) -> Replayed:
    """Replay a run directory. ConfigError where it is none, DataError where it was not recorded for that."""
    run_dir = RunDirectory.existing(directory)
    path = run_dir.settings("dataflow")
    if not path.is_file():
        raise DataError(f"{directory} holds no settings of Dataflow ({path.name})")
    settings = read_settings(DataflowSettings, path)
    records = list(read_log(run_dir.ledger))
    config, seed = settings.dataflow, settings.experiment.seed
    tokenizer = load_tokenizer(settings.tokenizer_path)
    rows = load_rollout_rows(config, seed=seed, tokenizer=tokenizer)
    return replay(records, read_arrivals(run_dir.ledger), settings, rows)


def replay(records: Sequence[Record], arrivals: Iterable[Came], settings: DataflowSettings, rows: Rows) -> Replayed:
    """Replay a log with what RaaS returned, in order. DataError where that was not kept."""
    finished = any(isinstance(record, Finish) and record.groups for record in records)
    if finished and not any(isinstance(record, Arrived) for record in records):
        raise DataError("what RaaS returned was not kept: a run is recorded with dataflow.ledger.replayable: true")
    following = _Replay(Log(records), iter(arrivals), settings, rows)
    run(following.follow(), VirtualLoop())
    return following.log.replayed()


class Log:
    """The recorded log, met record by record."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.position = 0
        self.difference: str | None = None
        self._records = records
        self._batches: list[Batched] = []

    @property
    def next(self) -> Record | None:
        """What comes next; None at the end, and after a difference."""
        if self.difference is not None or self.position == len(self._records):
            return None
        return self._records[self.position]

    def following(self, number: int = 0) -> Record | None:
        """The record so many after the next one."""
        at = self.position + number
        return self._records[at] if at < len(self._records) else None

    def meet(self, derived: Record) -> None:
        """The service has made a record: it must be the next one."""
        if self.difference is not None:
            return
        recorded = self.following()
        if derived != recorded:
            self.differ(_shown(derived))
            return
        if isinstance(derived, Batched):
            self._batches.append(derived)
        self.position += 1

    def differ(self, derived: str) -> None:
        """The next record is not made again; `derived` says what is, instead."""
        if self.difference is None:
            where = f"record {self.position + 1} of {len(self._records)}, batch {len(self._batches) + 1}"
            self.difference = f"{where}: recorded {_shown(self.following())}; derived {derived}"

    def replayed(self) -> Replayed:
        return Replayed(len(self._records), self.position, self._batches, self.difference)


class Witness(Durable):
    """A journal that writes nothing: it holds each record against the log."""

    def __init__(self, store: LedgerStore, log: Log, disk: Disk) -> None:
        super().__init__(store)
        self._log = log
        self._disk = disk

    def append(self, *items: Item) -> None:
        for item in items:
            match item:
                case Came():
                    self._log.meet(Arrived(item.group_id))
                    self._disk.write([Came(item.group_id, None)])
                case Kept() | Released() | Var():
                    self._disk.write([item])
                case SnapshotTaken():
                    pass
                case _:
                    self._log.meet(item)
                    self._disk.write([item])

    async def durable(self) -> None:
        pass

    async def read(self, group_ids: Iterable[int]) -> dict[int, Group]:
        return {group_id: self._disk.groups[group_id] for group_id in group_ids if group_id in self._disk.groups}


class _Replay:
    """The service, and what is done to it."""

    def __init__(self, log: Log, arrivals: Iterator[Came], settings: DataflowSettings, rows: Rows) -> None:
        self.log = log
        self._arrivals = arrivals
        # rounds are no part of the ledger
        dataflow = settings.dataflow.model_copy(update={"eval_datasets": {}})
        self._settings = settings.model_copy(update={"dataflow": dataflow})
        self._rows = rows
        self._disk = Disk(lambda record: None)
        self._notifying: set[asyncio.Task[m.NotifyVersionReply]] = set()
        self._service: AstraFlow | None = None

    async def follow(self) -> None:
        """Do what the log says came from outside, until it ends or something differs."""
        while (record := self.log.next) is not None:
            before = self.log.position
            try:
                await self._do(record)
            except AstraFlowError as error:
                self.log.differ(f"{error.kind}: {error}")
            if self.log.position == before:
                self.log.differ("nothing")

    async def _do(self, record: Record) -> None:
        if isinstance(record, Started):
            self._start(record.life)
            return
        service = self._service
        if service is None:
            raise DataError("the log does not begin with the start of a Dataflow: it is older than `astraflow replay`")
        match record:
            case TrainerReady():
                service.pool.versions.saw(record.request.model_id, record.seen)
                await service.ready(record.request)
            case Announced():
                await self._announce(service, record)
            case Serve():
                entry = service.books.ledger.get(record.group_ids[0])
                model_id = entry.key.model_id if entry is not None and entry.key is not None else ""
                await service.batch(m.BatchRequest(model_id=model_id, version=record.version, timeout=0.0))
            case Arrived():
                self._return(service, record)
            case Attended():
                service.books.attended(record.model_id, record.present)
            case Issue():
                service.acquisition.issue()
            case Lease() | LoseLeases() | Expire() | Finish() | Orphan() | Settle():
                service.books.record(record)
            case _:
                pass  # a decision that nothing before it led to

    def _start(self, life: int) -> None:
        """A Dataflow begins, or goes on from what is on the disk. A RaaS that came back keeps its leases."""
        # one that died before its first commit has left no record
        self._disk.vars["life"] = str(life - 1).encode()
        lost, number = set(), 1
        while isinstance(following := self.log.following(number), LoseLeases):
            lost.add(following.owner)
            number += 1
        owners = set() if self._service is None else set(self._service.books.ledger.owners) - lost
        self._disk.write(Seat(owner.rpartition("#")[0], "lives on", owner).written() for owner in owners)
        for task in self._notifying:
            task.cancel()
        self._service = AstraFlow(
            self._settings,
            self._rows,
            {},
            lambda url: RaaSClient(url, ""),
            TrajectoryLog(None),
            clock=lambda: 0.0,
            store=SimulatedStore(self._disk),
            journal_of=lambda store: Witness(store, self.log, self._disk),
        )

    async def _announce(self, service: AstraFlow, record: Announced) -> None:
        """All of it that decides happens before it waits for other models."""
        request = m.NotifyVersionRequest(
            version=record.version,
            step=record.step,
            model_id=record.model_id,
            manifest=Manifest(model_id=record.model_id, version=record.version, tensors=(), digest=record.digest),
        )
        task = asyncio.create_task(service.notify_version(request))
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)
        await asyncio.sleep(0)
        if task.done():
            await task

    def _return(self, service: AstraFlow, record: Arrived) -> None:
        came = next(self._arrivals, None)
        entry = service.books.ledger.get(record.group_id)
        if came is None or came.group_id != record.group_id or entry is None:
            raise DataError(f"what a RaaS returned for group {record.group_id} is not there")
        task_id = service.acquisition.task_id(entry)
        item = m.PulledItem(task_id=task_id, lease=entry.lease, result=came.result)
        service.acquisition.results(entry.owner, [item])


def _shown(record: Record | None) -> str:
    text = "nothing" if record is None else repr(record)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
