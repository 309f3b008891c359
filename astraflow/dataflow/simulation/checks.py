"""The invariants of a world, checked without trusting what is checked.

From the log alone, record by record: every move is one of invariant 4's, issued = trained + dropped + in flight
(`audit`), and no group is issued beyond (η + v + 1)·B accepted or running (invariant 2), counted anew here. From what
the peers see, whenever time passes: nobody starves. Trainers check invariant 3 themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from astraflow.dataflow.audit import Auditor
from astraflow.dataflow.ledger import Curate, Drop, Finish, Issue, Lease, Requeue, Rewind, Serve, State
from astraflow.dataflow.records import Announced, Attended, Record, Started, TrainerReady
from astraflow.dataflow.replays import replay_count

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
    """What the log says, counted anew; `see` each record in order."""

    def __init__(
        self, n_samples: int, max_staleness: int, wrong: Callable[[str, str], None], replay_ratio: float = 0.0
    ) -> None:
        """wrong: told (kind, text) of each violation. replay_ratio: share of a batch that may be trained again."""
        self.auditor = Auditor()
        self.records = 0
        self.leases = 0
        """Times that occurrences were leased."""
        self.running = 0
        self.accepted: Counter[str] = Counter()
        self.step: dict[str, int] = {}
        self.batch: dict[str, int] = {}
        self.dropped: Counter[str] = Counter()
        self.absent: set[str] = set()
        self._n_samples = n_samples
        self._max_staleness = max_staleness
        self._replay_ratio = replay_ratio
        self._replays: dict[str, dict[int, int]] = {}
        """model → step → places that replays took; those of the batch that waits under the step to come."""
        self._wrong = wrong
        self._told = 0

    def credit(self, model_id: str, step: int) -> int:
        """Groups that invariant 2 lets start on a RaaS that serves the version of `step`."""
        batch = self.batch[model_id]
        limit = (self._max_staleness + min(step, self.step[model_id]) + 1) * batch
        reserved = self._max_staleness * replay_count(batch, self._replay_ratio)
        replayed = sum(self._replays.get(model_id, {}).values())
        return limit - reserved - replayed - self.accepted[model_id] - self.running

    def ready(self, model_id: str) -> int:
        """Groups that wait for a batch."""
        return len(self.auditor.ledger.groups(State.READY, model_id))

    def see(self, record: Record) -> None:
        self.records += 1
        self._count(record)
        self.auditor.see(record)
        for problem in self.auditor.problems[self._told :]:
            self._wrong("exactly once", problem)
        self._told = len(self.auditor.problems)

    def _count(self, record: Record) -> None:
        entry = self.auditor.ledger.get
        match record:
            case TrainerReady():
                request = record.request
                self.batch[request.model_id] = request.train_batch_size // self._n_samples
                self.step[request.model_id] = request.recovered_step or 0
            case Announced():
                self.step[record.model_id] = record.step
            case Attended():
                (self.absent.discard if record.present else self.absent.add)(record.model_id)
            case Started():
                self.absent.clear()
            case Issue():
                self.running += 1
                for model_id in self.batch.keys() - self.absent:
                    if self.credit(model_id, self.step[model_id]) < 0:
                        self._wrong("admission", f"{model_id}: more is accepted or running than invariant 2 allows")
            case Lease():
                self.leases += 1
            case Finish():
                leased = entry(record.group_id)
                if leased is None or leased.owner != record.owner:
                    return
                self.running -= 1
                self.accepted.update(key.model_id for key in record.groups)
                if record.drop is not None:
                    self.dropped[record.drop] += 1
            case Curate():
                if record.drop is not None:
                    self._gone((record.group_id,))
                    self.dropped[record.drop] += 1
            case Drop():
                self._gone(record.group_ids)
                self.dropped[record.reason] += len(record.group_ids)
            case Serve():
                served = entry(record.group_ids[0])
                if record.replayed and served is not None and served.key is not None:
                    model_id = served.key.model_id
                    self._replays.setdefault(model_id, {})[self.step[model_id] + 1] = len(record.replayed)
            case Rewind():
                for step in [step for step in self._replays.get(record.model_id, {}) if step > record.step]:
                    del self._replays[record.model_id][step]
            case Requeue():
                self._gone(record.group_ids)
                self.running += len(record.group_ids)
            case _:
                pass

    def _gone(self, group_ids: tuple[int, ...]) -> None:
        for group_id in group_ids:
            entry = self.auditor.ledger.get(group_id)
            if entry is not None and entry.key is not None:
                self.accepted[entry.key.model_id] -= 1


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
