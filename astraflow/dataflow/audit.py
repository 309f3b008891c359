"""Proof of conservation (LAW 30), from the log alone:

    issued = trained + dropped by reason + in flight

`Auditor` follows every group through the log with bookkeeping of its own, a place for each group, and notes each move
that is not one of invariant 4's; `Lineage` follows every model's steps, which are contiguous, and its versions, whose
numbers rise. The ledger's counters, replayed, must agree with it. It also shows who was lost: the lengths of what was
dropped and what was trained, and the share of each length decile that was dropped as too old, since staleness hits long
episodes harder (LAW 26).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from astraflow.core.data import LeaseId
from astraflow.dataflow.ledger import (
    Acknowledge,
    Curate,
    Drop,
    DropReason,
    Event,
    Expire,
    Finish,
    Issue,
    Lease,
    Ledger,
    LoseLeases,
    Requeue,
    Rewind,
    Serve,
    Settle,
    State,
)
from astraflow.dataflow.lineage import Lineage
from astraflow.dataflow.records import Announced, Arrived, Attended, Batched, Record, Started, TrainerReady
from astraflow.dataflow.store import read_log
from astraflow.errors import InvariantError

DECILES = 10


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled tokens of groups' longest trajectories."""

    groups: int
    mean: float
    p10: float
    p50: float
    p90: float

    @classmethod
    def of(cls, lengths: list[int]) -> Lengths | None:
        """None for no groups."""
        if not lengths:
            return None
        p10, p50, p90 = np.percentile(lengths, (10, 50, 90)).tolist()
        return cls(groups=len(lengths), mean=float(np.mean(lengths)), p10=p10, p50=p50, p90=p90)


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of every group that a run asked for."""

    conserved: bool
    """The sum holds, every move was allowed, nothing trained twice, no step is missing, the ledger's counters agree."""
    problems: list[str]
    """What does not hold; at most some, the first ones."""
    issued: int
    trained: int
    """In the surviving lineage."""
    dropped: dict[str, int]
    in_flight: dict[str, int]
    starts: int
    """Registrations of trainers: starts and recoveries."""
    versions: int
    retrained: int
    """Groups that were trained in a lineage which was left behind, and went back."""
    replayed: int
    """Places of batches in the surviving lineage that trained groups took again on purpose."""
    rerun: int
    """Groups whose occurrences ran again because their tokens were of such a lineage, or not written down in time."""
    lost_leases: int
    orphans: int
    kept_lengths: Lengths | None
    lost_lengths: dict[str, Lengths]
    """By reason; a group without any trajectory has no length."""
    stale_share_by_decile: list[float]
    """Of the groups in each tenth of all lengths, the shortest first: the share that was dropped as too old."""


def audit(directory: Path) -> AuditReport:
    """Audit the ledger in a directory. DataError where there is none."""
    auditor = Auditor()
    for record in read_log(directory):
        auditor.see(record)
    return auditor.report()


class Auditor:
    """Follows every group; `see` each record in order."""

    def __init__(self, most_problems: int = 20) -> None:
        self.ledger = Ledger()
        """The ledger's own replay of the same records."""
        self.problems: list[str] = []
        """What does not hold; at most some, the first ones."""
        self._place: dict[int, State] = {}
        self._model: dict[int, str] = {}
        self._owner: dict[int, str] = {}
        self._deadline: dict[int, float] = {}
        self._attempts: Counter[int] = Counter()
        self._served: dict[str, list[int]] = {}
        self._replays: dict[str, int] = {}
        self._replayed: dict[str, dict[int, int]] = defaultdict(dict)
        """model → step → places of its batch that were replays."""
        self._steps: dict[str, dict[int, list[int]]] = defaultdict(dict)
        """model → step → what it trained, while a trainer can still go back of it."""
        self._reason: dict[int, DropReason] = {}
        self._length: dict[int, int] = {}
        self._counts: Counter[str] = Counter()
        self._lineage = Lineage(self._problem)
        self._most = most_problems

    def see(self, record: Record) -> None:
        """Follow one record."""
        match record:
            case TrainerReady():
                self._counts["starts"] += 1
                self._lineage.ready(record.request)
            case Announced():
                self._counts["versions"] += 1
                self._lineage.announced(record)
            case Started() | Arrived() | Attended() | Batched():
                pass
            case _:
                self._follow(record)
                try:
                    self.ledger.handle(record)
                except InvariantError as error:
                    self._problem(f"the ledger refuses {type(record).__name__}: {error}")

    def place(self, group_id: int) -> State | None:
        """Where a group is; None for one that was never asked for."""
        return self._place.get(group_id)

    def report(self) -> AuditReport:
        """The result so far."""
        places = Counter(self._place.values())
        dropped = Counter(self._reason.values())
        in_flight = {s.value: n for s, n in places.items() if s not in (State.TRAINED, State.DROPPED)}
        c = self.ledger.counters
        if len(self._place) != places[State.TRAINED] + dropped.total() + sum(in_flight.values()):
            self._problem("issued is not trained + dropped + in flight")
        if (c.issued, c.trained, c.in_flight) != (len(self._place), places[State.TRAINED], sum(in_flight.values())):
            self._problem(f"the ledger counts {c.issued} issued, {c.trained} trained, {c.in_flight} in flight")
        if c.replayed != (replayed := sum(n for steps in self._replayed.values() for n in steps.values())):
            self._problem(f"the ledger counts {c.replayed} replayed, not {replayed}")
        if +c.dropped != dropped:
            self._problem(f"the ledger counts {dict(c.dropped)} dropped")
        trained = [group_id for group_id, place in self._place.items() if place is State.TRAINED]
        lost: dict[str, list[int]] = defaultdict(list)
        for group_id, reason in self._reason.items():
            lost[reason.value] += [self._length[group_id]] if group_id in self._length else []
        return AuditReport(
            conserved=not self.problems,
            problems=self.problems,
            issued=len(self._place),
            trained=len(trained),
            dropped={reason.value: n for reason, n in dropped.items()},
            in_flight=in_flight,
            starts=self._counts["starts"],
            versions=self._counts["versions"],
            retrained=self._counts["retrained"],
            replayed=replayed,
            rerun=self._counts["rerun"],
            lost_leases=c.lost_leases,
            orphans=c.orphans,
            kept_lengths=Lengths.of([self._length[g] for g in trained if g in self._length]),
            lost_lengths={name: lengths for name, all_ in lost.items() if (lengths := Lengths.of(all_)) is not None},
            stale_share_by_decile=self._stale_shares(),
        )

    def _stale_shares(self) -> list[float]:
        by_length = sorted(self._length, key=lambda group_id: (self._length[group_id], group_id))
        parts = np.array_split(np.array(by_length, np.int64), DECILES) if by_length else []
        stale = {group_id for group_id, reason in self._reason.items() if reason is DropReason.STALE}
        return [float(np.mean([g in stale for g in part.tolist()])) if len(part) else 0.0 for part in parts]

    def _follow(self, event: Event) -> None:
        match event:
            case Issue():
                self._place[self._next()] = State.QUEUED
            case Lease():
                self._move(event.group_ids, State.QUEUED, State.LEASED)
                self._owner |= dict.fromkeys(event.group_ids, event.owner)
                self._deadline |= dict.fromkeys(event.group_ids, event.deadline)
                self._attempts.update(event.group_ids)
            case LoseLeases():
                held = [g for g, owner in self._owner.items() if owner == event.owner]
                named = {lease.group_id for lease in event.leases if self._holds(lease)}
                self._unlease(g for g in held if event.group_ids is None or g in named)
            case Expire():
                self._unlease([g for g, deadline in self._deadline.items() if deadline <= event.now])
            case Finish():
                self._finish(event)
            case Curate():
                after = State.READY if event.drop is None else State.DROPPED
                self._move((event.group_id,), State.DONE, after, event.drop)
                if event.length:
                    self._length[event.group_id] = event.length
            case Drop():
                self._move(event.group_ids, State.READY, State.DROPPED, event.reason)
            case Serve():
                self._move(event.group_ids, State.READY, State.SERVED)
                model_id = self._model[event.group_ids[0]]
                self._served[model_id] = list(event.group_ids)
                self._replays[model_id] = self._again(event.replayed, model_id)
            case Acknowledge():
                served = self._served.pop(event.model_id, [])
                if replays := self._replays.pop(event.model_id, 0):
                    at = self._replayed[event.model_id]
                    at[event.step] = at.get(event.step, 0) + replays
                self._move(served, State.SERVED, State.TRAINED)
                self._lineage.trained(event)
                if event.step >= 0 and served:
                    self._steps[event.model_id][event.step] = served
            case Rewind():
                self._rewind(event)
            case Requeue():
                self._counts["rerun"] += len(event.group_ids)
                for group_id in event.group_ids:
                    self._move((group_id,), self._place.get(group_id, State.QUEUED), State.QUEUED)
            case Settle():
                self._lineage.settled(event)
                for step in [step for step in self._steps[event.model_id] if step <= event.step]:
                    del self._steps[event.model_id][step]

    def _rewind(self, event: Rewind) -> None:
        self._lineage.back(event)
        steps = self._steps[event.model_id]
        for step in [step for step in steps if step > event.step]:
            self._counts["retrained"] += len(steps[step])
            self._move(steps.pop(step), State.TRAINED, State.READY)
        self._move(self._served.pop(event.model_id, []), State.SERVED, State.READY)
        self._replays.pop(event.model_id, None)
        for step in [step for step in self._replayed[event.model_id] if step > event.step]:
            del self._replayed[event.model_id][step]

    def _again(self, group_ids: Iterable[int], model_id: str) -> int:
        """A batch holds trained groups again; returns how many. They stay trained."""
        replays = list(group_ids)
        for group_id in replays:
            if self._place.get(group_id) is not State.TRAINED or self._model.get(group_id) != model_id:
                self._problem(f"group {group_id} is replayed for {model_id}, which did not train it")
        if len(set(replays)) != len(replays):
            self._problem(f"groups {replays} are replayed twice in one batch")
        return len(replays)

    def _finish(self, event: Finish) -> None:
        group_id = event.group_id
        if not self._holds(event.lease):
            return  # an orphan: counted by the ledger, of no effect
        del self._owner[group_id], self._deadline[group_id]
        if not event.groups:
            self._move((group_id,), State.LEASED, State.DROPPED, event.drop)
            return
        self._move((group_id,), State.LEASED, State.DONE)
        numbers = [group_id]
        for _ in event.groups[1:]:
            numbers.append(self._next())
            self._place[numbers[-1]] = State.DONE
        self._model |= {number: key.model_id for number, key in zip(numbers, event.groups, strict=True)}

    def _holds(self, lease: LeaseId) -> bool:
        attempts = (0, self._attempts[lease.group_id])
        return self._owner.get(lease.group_id) == lease.owner and lease.attempt in attempts

    def _unlease(self, group_ids: Iterable[int]) -> None:
        lost = list(group_ids)
        self._move(lost, State.LEASED, State.QUEUED)
        for group_id in lost:
            del self._owner[group_id], self._deadline[group_id]

    def _move(self, group_ids: Iterable[int], before: State, after: State, reason: DropReason | None = None) -> None:
        for group_id in group_ids:
            found = self._place.get(group_id)
            if found is not before:
                self._problem(f"group {group_id} goes to {after} from {found}, expected {before}")
            if after is State.DROPPED:
                if reason is None:
                    self._problem(f"group {group_id} is dropped without a reason")
                else:
                    self._reason[group_id] = reason
            self._place[group_id] = after

    def _next(self) -> int:
        return len(self._place) + 1

    def _problem(self, text: str) -> None:
        if len(self.problems) < self._most:
            self.problems.append(text)
