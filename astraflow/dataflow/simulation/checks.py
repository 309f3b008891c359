"""The invariants of a world, checked without trusting what is checked.

From the log alone, record by record: every move is one of invariant 4's, issued = trained + dropped + in flight
(`audit`), and no group is issued beyond (η + v + 1)·B accepted or running (invariant 2), counted anew here. From what
the peers see, whenever time passes: nobody starves. Trainers check invariant 3 themselves.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

import msgspec

from astraflow.dataflow.audit import Auditor
from astraflow.dataflow.ledger import (
    Acknowledge,
    Curate,
    Drop,
    DropReason,
    Finish,
    Issue,
    Lease,
    Requeue,
    Rewind,
    Serve,
    Settle,
)
from astraflow.dataflow.records import Announced, Attended, Record, Started, TrainerReady
from astraflow.dataflow.simulation.network import Program
from astraflow.dataflow.simulation.scenario import Scenario

PATIENCE_S = 1.5
"""Longest that something may stand still though nothing is lacking: below the service's clock, which would heal it."""


class Violation(msgspec.Struct, frozen=True):
    """Something that may not be."""

    kind: str
    """One word or two, for counting."""
    text: str
    at_s: float
    """Virtual time."""


class LogChecks:
    """What the log says, counted anew; `see` each record in order.

    Places are what the bound counts: a group takes one, or, where samples are counted, as many as it began with until
    it is known how many it has.
    """

    def __init__(self, scenario: Scenario, wrong: Callable[[str, str], None]) -> None:
        """wrong: told (kind, text) of each violation."""
        self.auditor = Auditor()
        self.records = 0
        self.leases = 0
        """Times that occurrences were leased."""
        self.running = 0
        """Groups that are queued or leased."""
        self.held: Counter[str] = Counter()
        """model → places of its groups that are done, ready or in the batch which waits for acknowledgement."""
        self.step: dict[str, int] = {}
        self.announced: set[tuple[str, int]] = set()
        """(model, version) of all announcements, of every lineage."""
        self.dropped: Counter[str] = Counter()
        self.absent: set[str] = set()
        self._scenario = scenario
        self._group = scenario.group_places
        self._batch: dict[str, int] = {}
        """model → places of a batch."""
        self._places: dict[int, int] = {}
        """Group from ready on → its places, where it may be fewer than it began with."""
        self._ready: dict[str, dict[int, None]] = defaultdict(dict)
        self._served: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """model → the new and the replayed groups of the batch that waits for acknowledgement."""
        self._trained: dict[str, dict[int, tuple[int, ...]]] = defaultdict(dict)
        """model → step → what it trained for the first time, while a trainer can still go back of it."""
        self._causes = causes(scenario)
        self._wrong = wrong
        self._told = 0

    def copy(self) -> LogChecks:
        """Return what is known now, to go on from when an older log is put back."""
        return copy.deepcopy(self, {id(self._wrong): self._wrong, id(self._scenario): self._scenario})

    def credit(self, model_id: str, step: int) -> int:
        """Places that invariant 2 leaves for groups on a RaaS that serves the version of `step`."""
        eta, now, batch = self._scenario.max_staleness, self.step[model_id], self._batch[model_id]
        # what was trained took a whole batch's places each step, and replays are kept room for in the batches to come
        limit = (eta + min(step, now) + 1) * batch - eta * self._scenario.replays * self._group
        return limit - now * batch - self.held[model_id] - self.running * self._group

    def fills(self, model_id: str, replayable: Iterable[int]) -> bool:
        """Is there a batch in what waits, with as many groups that may train again as may be in it?"""
        ready = self._ready[model_id]
        again = sorted(map(self._weight, replayable))[: self._scenario.replays]
        return bool(ready) and sum(map(self._weight, ready)) + sum(again) >= self._batch[model_id]

    def see(self, record: Record) -> None:
        self.records += 1
        self._count(record)
        self.auditor.see(record)
        for problem in self.auditor.problems[self._told :]:
            self._wrong("exactly once", problem)
        self._told = len(self.auditor.problems)

    def _count(self, record: Record) -> None:
        match record:
            case TrainerReady():
                request = record.request
                self._batch[request.model_id] = request.train_batch_size // self._scenario.n_samples * self._group
                self.step[request.model_id] = request.recovered_step or 0
            case Announced():
                self.step[record.model_id] = record.step
                self.announced.add((record.model_id, record.version))
            case Attended():
                (self.absent.discard if record.present else self.absent.add)(record.model_id)
            case Started():
                self.absent.clear()
            case Issue():
                self.running += 1
                for model_id in self._batch.keys() - self.absent:
                    # a group may begin while one place is free
                    if self.credit(model_id, self.step[model_id]) <= -self._group:
                        self._wrong("admission", f"{model_id}: more is accepted or running than invariant 2 allows")
            case Lease():
                self.leases += 1
            case _:
                self._end(record)

    def _end(self, record: Record) -> None:
        """What becomes of a group from the end of its lease on."""
        match record:
            case Finish():
                leased = self.auditor.ledger.get(record.group_id)
                if leased is None or not leased.holds(record.lease):
                    return
                self.running -= 1
                for key in record.groups:
                    self.held[key.model_id] += self._group
                if record.drop is not None:
                    self._drop(record.drop)
            case Curate() if record.drop is None:
                model_id = self._model(record.group_id)
                self._ready[model_id][record.group_id] = None
                if self._group > 1:
                    self._places[record.group_id] = record.samples
                    self.held[model_id] += record.samples - self._group
            case Curate():
                self._gone((record.group_id,), record.drop)
            case Drop():
                self._gone(record.group_ids, record.reason)
            case Serve():
                model_id = self._model(record.group_ids[0])
                for group_id in record.group_ids:
                    del self._ready[model_id][group_id]
                self._served[model_id] = record.group_ids, record.replayed
                self.held[model_id] += sum(map(self._weight, record.replayed))
            case Acknowledge():
                new, again = self._served.pop(record.model_id, ((), ()))
                self.held[record.model_id] -= sum(map(self._weight, (*new, *again)))
                self._trained[record.model_id][record.step] = new
            case Rewind():
                new, again = self._served.pop(record.model_id, ((), ()))
                self.held[record.model_id] -= sum(map(self._weight, again))
                steps = self._trained[record.model_id]
                taken_back = [g for step in sorted(steps) if step > record.step for g in steps.pop(step)]
                self.held[record.model_id] += sum(map(self._weight, taken_back))
                self._ready[record.model_id].update(dict.fromkeys((*new, *taken_back)))
            case Settle():
                steps = self._trained[record.model_id]
                for step in [step for step in steps if step <= record.step]:
                    for group_id in steps.pop(step):
                        self._places.pop(group_id, None)
            case Requeue():
                self._gone(record.group_ids)
                self.running += len(record.group_ids)
            case _:
                pass

    def _gone(self, group_ids: tuple[int, ...], reason: str | None = None) -> None:
        for group_id in group_ids:
            model_id = self._model(group_id)
            self._ready[model_id].pop(group_id, None)
            self.held[model_id] -= self._weight(group_id)
            self._places.pop(group_id, None)
        if reason is not None:
            self._drop(reason, len(group_ids))

    def _drop(self, reason: str, groups: int = 1) -> None:
        self.dropped[reason] += groups
        if reason not in self._causes:
            self._wrong("dropped", f"a group is dropped as {reason}, for which this world has no cause")

    def _weight(self, group_id: int) -> int:
        return self._places.get(group_id, self._group)

    def _model(self, group_id: int) -> str:
        entry = self.auditor.ledger.get(group_id)
        return entry.key.model_id if entry is not None and entry.key is not None else ""


def causes(scenario: Scenario) -> frozenset[DropReason]:
    """Return why a group may be dropped: none rejects, all versions are of one run, buffers have no end."""
    # every world has samples that run longer than an episode may
    reasons = {DropReason.ZERO_ADVANTAGE, DropReason.STALE, DropReason.FAILED, DropReason.INVALID}
    if scenario.curated:
        reasons |= {DropReason.DUPLICATE}
    if scenario.policies > 1:
        reasons |= {DropReason.ABSENT}
    return frozenset(reasons)


class Names:
    """Who has each name's place in the pool: a process that another has replaced takes no place of one that lives."""

    def __init__(self, wrong: Callable[[str, str], None]) -> None:
        self._wrong = wrong
        self._replaced: set[str] = set()

    def registered(self, uid: str, before: str | None, url: str | None, processes: Mapping[str, Program]) -> None:
        """A request to register came, and the urls that had the name's place before and after it."""
        if before is None or url is None or before == url:
            return
        other = processes[before]
        lives = not (other.dead or other.silent or other.leaving)
        if lives and url in self._replaced:
            self._wrong("same name", f"{uid}: {url} takes the place of {before}, which lives")
        self._replaced.discard(url)
        self._replaced.add(before)


class Patience:
    """What stands still, since when; who stands still too long is a violation, told once."""

    def __init__(self, wrong: Callable[[str, str], None]) -> None:
        self._wrong = wrong
        self._since: dict[tuple[str, str], float] = {}
        self._told: set[tuple[str, str]] = set()

    def look(self, now: float, still: Mapping[tuple[str, str], tuple[float, str]]) -> None:
        """still: (kind, who) → (how long it may, in words what is wrong), for all that stand still now."""
        self._since = {key: self._since.get(key, now) for key in still}
        for key, (longest, text) in still.items():
            if now - self._since[key] > longest and key not in self._told:
                self._told.add(key)
                self._wrong(key[0], f"{key[1]}: {text}, for {now - self._since[key]:.1f} s")
