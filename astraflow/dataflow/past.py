"""What a Dataflow finds of an earlier one in its run directory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from astraflow.core.data import Group, decode, encode
from astraflow.core.data.trajectory import Row
from astraflow.core.dataset.digest import rows_digest
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.curriculum import Curriculum
from astraflow.dataflow.evaluation import FIRST_GROUP_ID
from astraflow.dataflow.ledger import Ledger
from astraflow.dataflow.policies import Policies, Published
from astraflow.dataflow.records import Loaded, Released, Var
from astraflow.dataflow.recovery import published_name, replay
from astraflow.dataflow.store import LedgerStore
from astraflow.errors import ConfigError, DataError

log = logging.getLogger(__name__)

Datasets = Mapping[str, Sequence[Row]]
"""Rows by the name of their dataset."""

LIVES = 1 << 28
"""Evaluation's group ids that each process has to itself: a RaaS that lives on knows those of the last one."""


REGISTRATIONS = 1 << 20
"""Registrations of RaaS that each process has to itself."""


class Origin(msgspec.Struct, frozen=True):
    """What a ledger's numbers mean: it continues only with the same."""

    rows: dict[str, int]
    """Of each dataset."""
    seed: int
    digests: dict[str, str] = {}
    """Of each dataset's rows; empty in ledgers of earlier versions."""
    scored: dict[str, str] = {}
    """Likewise of the evaluation datasets."""

    @classmethod
    def of(cls, rows: Datasets, eval_rows: Datasets, seed: int) -> Origin:
        """Return what a ledger that begins now means."""
        digests, scored = ({name: rows_digest(r) for name, r in datasets.items()} for datasets in (rows, eval_rows))
        return cls({name: len(r) for name, r in rows.items()}, seed, digests, scored)

    def continues(self, begun: Origin, run_dir: str) -> None:
        """Raise ConfigError where a ledger was `begun` otherwise; log what only makes scores hard to compare."""
        if (begun.rows, begun.seed) != (self.rows, self.seed):
            raise ConfigError(
                f"the ledger in {run_dir} was begun with {begun.rows} rows and seed {begun.seed}, not {self.rows} and "
                f"{self.seed}: use another run directory"
            )
        if others := [name for name, digest in begun.digests.items() if self.digests[name] != digest]:
            found = ", ".join(f"{name} ({self.rows[name]} rows, digest {self.digests[name]})" for name in others)
            before = ", ".join(begun.digests[name] for name in others)
            raise ConfigError(
                f"the ledger in {run_dir} was begun with other rows, digest {before}, than those that were found now: "
                f"{found}; restore the rows that the run began with, or use another run directory"
            )
        for name, digest in begun.scored.items():
            if self.scored.get(name) != digest:
                log.warning(
                    "eval_datasets.%s has other rows than before: scores cannot be compared with earlier ones", name
                )


class Seat(msgspec.Struct, frozen=True):
    """A RaaS as it is registered."""

    uid: str
    incarnation: str
    key: str

    def written(self) -> Var:
        return Var(seat_name(self.uid), encode(self))


def seat_name(uid: str) -> str:
    """Name of the variable that holds a RaaS's newest registration."""
    return f"raas/{uid}"


def _never_begun(run_dir: RunDirectory, model_ids: Iterable[str]) -> None:
    """ConfigError where a trainer has kept the state of a step: then this empty ledger is not the run's."""
    for model_id in model_ids:
        for state in sorted(run_dir.recover(model_id).glob("step_*")):
            if int(state.name.removeprefix("step_")) > 0:
                raise ConfigError(
                    f"the ledger in {run_dir.ledger} is empty, but the trainer of '{model_id}' has trained: "
                    f"{state}. What the run has asked for and trained is lost with its ledger: restore the ledger, or "
                    "begin in a new run directory"
                )


@dataclass
class Past:
    """An earlier process's log and trajectories; empty at a run's first start."""

    life: int = 0
    """Processes before this one."""
    loaded: Loaded = field(default_factory=lambda: Loaded(None, []))
    published: dict[str, Published] = field(default_factory=dict)
    seats: dict[tuple[str, str], str] = field(default_factory=dict)
    """(uid, incarnation) → key of each RaaS that held leases: the same process keeps them."""
    store: LedgerStore | None = None

    @classmethod
    def of(
        cls, store: LedgerStore | None, settings: DataflowSettings, rows: Datasets, eval_rows: Datasets | None = None
    ) -> Past:
        """Read what is there, and note that another process has begun.

        ConfigError for other rows or another seed, or where trainers have begun and their ledger is gone.
        """
        if store is None:
            return cls()
        origin, before = Origin.of(rows, eval_rows or {}, settings.experiment.seed), store.var("origin")
        if before is not None:
            origin.continues(decode(before, Origin), settings.run_dir)
        else:
            _never_begun(RunDirectory(settings.run_dir), settings.gconfigs)
        life = int(store.var("life") or b"-1") + 1
        store.commit([Var("origin", encode(origin)), Var("life", str(life).encode())])
        values = {model_id: store.var(published_name(model_id)) for model_id in settings.gconfigs}
        published = {name: decode(value, Published) for name, value in values.items() if value is not None}
        return cls(life, store.load(), published, store=store)

    @property
    def first_eval_id(self) -> int:
        return FIRST_GROUP_ID + self.life * LIVES

    @property
    def registrations(self) -> int:
        """Above all that were made before: keys are never used twice, but by whom they belong to."""
        return self.life * REGISTRATIONS

    def read(self, group_id: int) -> Group | None:
        """The trajectories of a group; None where they were not kept or are damaged."""
        try:
            return self.store.read(group_id) if self.store is not None else None
        except DataError as error:
            log.error("group %d is lost: %s", group_id, error)
            return None

    def replay(self, policies: Policies, curriculum: Curriculum) -> Ledger:
        """Put policies and curriculum back and let go of trajectories that nobody needs; returns the ledger."""
        ledger = replay(self.loaded, policies, self.published, curriculum)
        if self.store is not None:
            for owner in ledger.owners:
                value = self.store.var(seat_name(owner.rpartition("#")[0]))
                seat = None if value is None else decode(value, Seat)
                if seat is not None and seat.key == owner and seat.incarnation:
                    self.seats[seat.uid, seat.incarnation] = owner
            self.store.commit([Released(tuple(self.store.kept - ledger.kept))])
        return ledger
