"""One entry for every ledger event, and what follows from what moved: credit and room.

Whoever changes the state of an occurrence records an event here. The ledger decides; each model's admission and the
pool's room follow the moves, so they cannot drift from it (LAW 29, LAW 30).
"""

from __future__ import annotations

from collections.abc import Mapping

from astraflow.dataflow.ledger import Event, Ledger, Moved, State
from astraflow.dataflow.raas_pool import RaaSPool
from astraflow.dataflow.staleness import Admission


class Books:
    """The ledger with everything that is derived from it."""

    def __init__(self, ledger: Ledger, pool: RaaSPool) -> None:
        self.ledger = ledger
        self._pool = pool
        self._admissions: dict[str, Admission] = {}

    @property
    def admissions(self) -> Mapping[str, Admission]:
        """model_id → its credit."""
        return self._admissions

    def admit(self, model_id: str, admission: Admission) -> None:
        """A model's trainer is ready: its credit counts from now on."""
        self._admissions[model_id] = admission

    def record(self, event: Event) -> list[Moved]:
        """Apply an event and return what moved."""
        moves = self.ledger.handle(event)
        for moved in moves:
            if moved.after is State.LEASED:
                self._pool.take(moved.owner, 1)
            elif moved.before is State.LEASED:
                self._pool.release(moved.owner, 1)
            for model_id, admission in self._admissions.items():
                if moved.model_id in ("", model_id):
                    admission.moved(moved)
        return moves

    def capacity(self, max_concurrent: int, steps: Mapping[str, int] | None = None) -> int:
        """Groups that every model's credit lets start now, on a RaaS that serves the versions of `steps`."""
        if not self._admissions:
            return 0
        return min(
            admission.capacity(max_concurrent, None if steps is None else steps[model_id])
            for model_id, admission in self._admissions.items()
        )
