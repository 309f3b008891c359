"""One entry for every ledger event, and what follows from what moved: credit, room, and what is written down.

Whoever changes the state of an occurrence records an event here. The ledger decides; each model's admission and the
pool's room follow the moves, so they cannot drift from it (LAW 29, LAW 30). The journal gets every event in order, and
the trajectories of ready groups until nobody can need them again.
"""

from __future__ import annotations

from collections.abc import Mapping

from astraflow.core.data import Batch, Group
from astraflow.core.data.trajectory import GroupResult
from astraflow.dataflow.journal import Journal, Volatile
from astraflow.dataflow.ledger import Event, Expire, Ledger, Moved, Settle, State
from astraflow.dataflow.raas_pool import RaaSPool
from astraflow.dataflow.records import Attended, Batched, Came, Kept, Released
from astraflow.dataflow.refill import Refill
from astraflow.dataflow.staleness import Admission


class Books:
    """The ledger with everything that is derived from it."""

    def __init__(
        self, ledger: Ledger, pool: RaaSPool, journal: Journal | None = None, *, replayable: bool = False
    ) -> None:
        """journal None: nothing outlives the process. replayable: what RaaS return is kept for a replay."""
        self.ledger = ledger
        self.journal = journal or Volatile()
        self._pool = pool
        self._replayable = replayable
        self.recorded = 0
        """Events so far, in this process."""
        self._admissions: dict[str, Admission] = {}
        self._absent: set[str] = set()
        self._refills: dict[str, Refill] = {}

    @property
    def admissions(self) -> Mapping[str, Admission]:
        """model_id → its credit."""
        return self._admissions

    def admit(self, model_id: str, admission: Admission) -> None:
        """A model's trainer is ready: its credit counts from now on."""
        self._admissions[model_id] = admission
        self._refills[model_id] = Refill()

    def refill(self, model_id: str) -> Refill:
        """What was dropped since a model's last batch; nothing before its trainer is ready."""
        return self._refills.get(model_id) or Refill()

    def record(self, event: Event) -> list[Moved]:
        """Apply an event and return what moved."""
        moves = self.ledger.handle(event)
        # time passes every few seconds and seldom does anything
        if moves or not isinstance(event, Expire):
            self.journal.append(event)
            self.recorded += 1
        gone = tuple(moved.group_id for moved in moves if moved.after in (State.DROPPED, None) and moved.model_id)
        if gone:
            self.journal.append(Released(gone))
        for moved in moves:
            if moved.after is State.LEASED:
                self._pool.take(moved.owner, 1)
            elif moved.before is State.LEASED:
                self._pool.release(moved.owner, 1)
            for model_id, admission in self._admissions.items():
                if moved.model_id in ("", model_id):
                    admission.moved(moved)
                    self._refills[model_id].moved(moved)
        return moves

    def keep(self, group: Group) -> None:
        """A group is about to be ready: its trajectories outlive the process."""
        self.journal.append(Kept(group))

    def attended(self, model_id: str, present: bool) -> None:
        """A model's trainer is back, or absent: then its credit limits nobody, and nobody waits for its groups."""
        self.journal.append(Attended(model_id, present))
        if present:
            self._absent.discard(model_id)
        else:
            self._absent.add(model_id)

    @property
    def absent(self) -> frozenset[str]:
        """Models whose trainers are absent."""
        return frozenset(self._absent)

    @property
    def full(self) -> frozenset[str]:
        """Models whose credit lets nothing start."""
        present = self._admissions.keys() - self._absent
        return frozenset(model_id for model_id in present if self._admissions[model_id].capacity(1) <= 0)

    @property
    def running(self) -> int:
        """Occurrences that are queued or leased."""
        return self.ledger.counters.states[State.QUEUED] + self.ledger.counters.states[State.LEASED]

    def arrived(self, group_id: int, result: GroupResult | None) -> None:
        """A RaaS has returned what it made of a leased occurrence; nothing is decided yet."""
        if self._replayable:
            self.journal.append(Came(group_id, result))

    def batched(self, model_id: str, version: int, batch: Batch) -> None:
        """The groups that were served last make this batch."""
        self.journal.append(Batched(model_id, version, batch.digest()))

    def settle(self, model_id: str, step: int) -> None:
        """What a model's steps up to this one trained is never taken back."""
        group_ids = self.ledger.trained(model_id, up_to=step)
        if group_ids:
            self.record(Settle(model_id, step))
            self.journal.append(Released(tuple(group_ids)))

    def capacity(self, max_concurrent: int, steps: Mapping[str, int] | None = None) -> int:
        """Groups that every model's credit lets start now, on a RaaS that serves the versions of `steps`."""
        return min(
            (
                admission.capacity(max_concurrent, None if steps is None else steps[model_id])
                for model_id, admission in self._admissions.items()
                if model_id not in self._absent
            ),
            default=0,
        )
