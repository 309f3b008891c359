"""What a Dataflow finds of an earlier one in its run directory."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import msgspec

from astraflow.core.data import Group, decode, encode
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.evaluation import FIRST_GROUP_ID
from astraflow.dataflow.ledger import Ledger
from astraflow.dataflow.policies import Policies, Published
from astraflow.dataflow.records import Loaded, Released, Var
from astraflow.dataflow.recovery import published_name, replay
from astraflow.dataflow.store import LedgerStore
from astraflow.errors import ConfigError, DataError

log = logging.getLogger(__name__)

LIVES = 1 << 28
"""Evaluation's group ids that each process has to itself: a RaaS that lives on knows those of the last one."""


class Origin(msgspec.Struct, frozen=True):
    """What a ledger's numbers mean: it continues only with the same."""

    rows: int
    seed: int


@dataclass
class Past:
    """An earlier process's log and trajectories; empty at a run's first start."""

    life: int = 0
    """Processes before this one."""
    loaded: Loaded = field(default_factory=lambda: Loaded(None, []))
    published: dict[str, Published] = field(default_factory=dict)
    store: LedgerStore | None = None

    @classmethod
    def of(cls, store: LedgerStore | None, settings: DataflowSettings, rows: int) -> Past:
        """Read what is there, and note that another process has begun. ConfigError for another dataset or seed."""
        if store is None:
            return cls()
        origin, before = Origin(rows, settings.experiment.seed), store.var("origin")
        if before is not None and decode(before, Origin) != origin:
            raise ConfigError(
                f"the ledger in {settings.run_dir} was begun with {decode(before, Origin)}, not {origin}: "
                "use another run directory"
            )
        life = int(store.var("life") or b"-1") + 1
        store.commit([Var("origin", encode(origin)), Var("life", str(life).encode())])
        values = {model_id: store.var(published_name(model_id)) for model_id in settings.gconfigs}
        published = {name: decode(value, Published) for name, value in values.items() if value is not None}
        return cls(life, store.load(), published, store)

    @property
    def first_eval_id(self) -> int:
        return FIRST_GROUP_ID + self.life * LIVES

    def read(self, group_id: int) -> Group | None:
        """The trajectories of a group; None where they were not kept or are damaged."""
        try:
            return self.store.read(group_id) if self.store is not None else None
        except DataError as error:
            log.error("group %d is lost: %s", group_id, error)
            return None

    def replay(self, policies: Policies) -> Ledger:
        """Put policies back and let go of trajectories that nobody needs; returns the ledger."""
        ledger = replay(self.loaded, policies, self.published)
        if self.store is not None:
            self.store.commit([Released(tuple(self.store.kept - ledger.kept))])
        return ledger
