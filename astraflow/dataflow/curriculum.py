"""Which row is asked for next: several datasets in proportion to their weights, each in a seeded order, prompts by what
is known of them.

    weights      the dataset whose share of all occurrences is furthest below its weight is next
    order        each pass over a dataset is its own permutation, a function of seed and pass
    prompts      a pass leaves a prompt out by the chance that its record gives it (prompts), a coin that is a function
                 of seed, pass and row

There is no other random state, so the next row is a function of the seed and of what the ledger's log holds: which
occurrences were issued, and how rollouts ended. A Dataflow that is started again asks for the same rows. A pass in
which every prompt would be left out leaves out none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from astraflow.dataflow.config import CurriculumConfig, DataflowConfig
from astraflow.dataflow.ledger_events import Visit
from astraflow.dataflow.prompts import NEVER, Pool, PromptRecord, PromptRules, pool_of
from astraflow.errors import DataError

PASSES_KEPT = 3
"""Passes whose order and coins are kept at hand: the one before, this one and the next."""

FIRST_LOOK = 64
"""Rows that are looked at together at first; more each time where none of them is asked for."""


class DatasetCursor:
    """An endless, seeded order over a dataset's rows; each epoch is its own permutation: a position is two numbers."""

    def __init__(self, rows: int, seed: int, number: int = 0) -> None:
        """number: of the dataset in a mixture."""
        if rows < 1:
            raise DataError("the rollout dataset has no rows")
        self.rows = rows
        self.epoch = 0
        self.position = 0
        # a dataset that is alone has the order that it has in a mixture's first place
        self._seed, self._number = seed, (number,) if number else ()
        self._orders: dict[int, np.ndarray] = {}
        self._order = self.order(0)
        self._place: np.ndarray | None = None
        """Position of each row in the order, where it was needed."""

    def seek(self, issued: int) -> None:
        """Continue after so many occurrences, none of them left out."""
        self.move(*divmod(issued, self.rows))

    def move(self, epoch: int, position: int) -> None:
        """Continue at a position."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._order, self._place = self.order(epoch), None
        self.position = position

    def after(self, row: int, epoch: int) -> None:
        """Continue after an occurrence of a row."""
        self.move(epoch, 0)
        if self._place is None:
            self._place = np.argsort(self._order)
        self.position = int(self._place[row]) + 1

    def next(self) -> tuple[int, int]:
        """(row, epoch) of the next occurrence."""
        if self.position == self.rows:
            self.move(self.epoch + 1, 0)
        row = int(self._order[self.position])
        self.position += 1
        return row, self.epoch

    def order(self, epoch: int) -> np.ndarray:
        """The rows of a pass in its order."""
        if epoch not in self._orders:
            if len(self._orders) >= PASSES_KEPT:
                self._orders.clear()
            self._orders[epoch] = self._random(epoch).permutation(self.rows)
        return self._orders[epoch]

    def coins(self, epoch: int) -> np.ndarray:
        """A number in [0, 1) for each row: what its chance is held against in a pass."""
        return self._random(epoch).spawn(1)[0].random(self.rows)

    def _random(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, epoch, *self._number])


class Chances:
    """Which rows of a dataset a pass asks for, in arrays: looking for the next one costs little where few are left.

    Not more than the rest of a pass and the whole one after it are looked at, and none of them twice while no visit
    could have changed what was found: also with every prompt solved, the next row takes no walk over the dataset.
    """

    def __init__(self, cursor: DatasetCursor) -> None:
        self._until = np.full(cursor.rows, NEVER, np.int64)
        self._chance = np.ones(cursor.rows)
        self._coins: dict[int, np.ndarray] = {}
        self._barren = NEVER
        """Up to the end of this pass nothing is asked for; NEVER: not known."""

    def note(self, row: int, until: int, chance: float) -> None:
        """A row is left out up to a pass, and asked for by this chance after it."""
        self._until[row], self._chance[row] = until, chance
        if until < self._barren and chance > 0:
            self._barren = NEVER

    def solved(self, epoch: int) -> int:
        """Rows that a pass leaves out as solved."""
        return int((self._until >= epoch).sum())

    def skip(self, cursor: DatasetCursor) -> int:
        """Move a cursor to the next row that is asked for; returns how many were left out, none where all would be."""
        epoch, position = cursor.epoch, cursor.position
        if position == cursor.rows:
            epoch, position = epoch + 1, 0
        if self._barren > epoch:
            return 0
        for passed, start in ((epoch, position), (epoch + 1, 0)):
            found = self._first(cursor, passed, start)
            if found is not None:
                cursor.move(passed, found)
                return found - position if passed == epoch else cursor.rows - position + found
        self._barren = epoch + 1
        return 0

    def _first(self, cursor: DatasetCursor, epoch: int, start: int) -> int | None:
        """The first position from `start` on whose row a pass asks for."""
        order, length = cursor.order(epoch), FIRST_LOOK
        while start < cursor.rows:
            rows = order[start : start + length]
            for place in np.flatnonzero((self._until[rows] < epoch) & (self._chance[rows] > 0)).tolist():
                chance = self._chance[rows[place]]
                if chance >= 1 or self._coins_of(cursor, epoch)[rows[place]] < chance:
                    return start + int(place)
            start, length = start + length, length * 8
        return None

    def _coins_of(self, cursor: DatasetCursor, epoch: int) -> np.ndarray:
        if epoch not in self._coins:
            if len(self._coins) >= PASSES_KEPT:
                self._coins.clear()
            self._coins[epoch] = cursor.coins(epoch)
        return self._coins[epoch]


def make_curriculum(config: DataflowConfig, sizes: Mapping[str, int], seed: int) -> Curriculum:
    """The curriculum that a configuration asks for; sizes: rows of each rollout dataset."""
    weights = [config.rollout_datasets[name].weight for name in sizes]
    return Curriculum(sizes, seed, weights=weights, rules=config.curriculum)


class CurriculumState(msgspec.Struct, frozen=True):
    """All of a curriculum that its log would have to be read for. Encode it before the next event."""

    positions: list[tuple[int, int]]
    """(epoch, position) of each dataset's cursor."""
    issued: list[int]
    """Occurrences of each dataset."""
    records: dict[int, PromptRecord]


class Curriculum:
    """Gives out (prompt_id, epoch); a prompt_id counts through the rows of all datasets, in their order."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        seed: int,
        *,
        weights: Sequence[float] = (),
        rules: CurriculumConfig | None = None,
    ) -> None:
        """sizes: dataset → rows; weights: as many, any positive numbers (none: all alike)."""
        self.names = tuple(sizes)
        self.left_out = 0
        """Times that a prompt was passed over, in this process."""
        self._rules = PromptRules(rules or CurriculumConfig())
        self._cursors = [DatasetCursor(rows, seed, number) for number, rows in enumerate(sizes.values())]
        self._starts = np.cumsum([0, *sizes.values()])
        shares = np.array(weights or [1.0] * len(sizes))
        self._shares = shares / shares.sum()
        self._issued = [0] * len(sizes)
        self._records: dict[int, PromptRecord] = {}
        self._chances = [Chances(cursor) for cursor in self._cursors] if self.watches else []

    def next(self) -> tuple[int, int]:
        """(prompt_id, epoch) of the next occurrence."""
        lacking = self._shares * (sum(self._issued) + 1) - self._issued
        dataset = int(lacking.argmax())
        self._issued[dataset] += 1
        cursor = self._cursors[dataset]
        if self._records:
            self.left_out += self._chances[dataset].skip(cursor)
        row, epoch = cursor.next()
        return int(self._starts[dataset]) + row, epoch

    def issued(self, prompt_id: int, epoch: int) -> None:
        """An occurrence was issued, as the log says: continue after it."""
        dataset = self.dataset(prompt_id)
        self._issued[dataset] += 1
        self._cursors[dataset].after(prompt_id - int(self._starts[dataset]), epoch)

    def visited(self, prompt_id: int, epoch: int, visit: Visit | None) -> None:
        """A rollout of a prompt ended, now or as the log says; None: without any reward."""
        if visit is not None and self.watches:
            record = self._records.setdefault(prompt_id, PromptRecord())
            self._rules.visited(record, visit, epoch)
            self._note(prompt_id, record)

    @property
    def watches(self) -> bool:
        """Do later choices depend on how rollouts went?"""
        return self._rules.any

    def dataset(self, prompt_id: int) -> int:
        """Number of the dataset that a prompt is of."""
        return int(np.searchsorted(self._starts, prompt_id, side="right")) - 1

    def snapshot(self) -> CurriculumState:
        """All that `restore` needs."""
        positions = [(cursor.epoch, cursor.position) for cursor in self._cursors]
        return CurriculumState(positions, list(self._issued), self._records)

    def restore(self, state: CurriculumState) -> None:
        """Continue where a snapshot was taken."""
        for cursor, position in zip(self._cursors, state.positions, strict=True):
            cursor.move(*position)
        self._issued, self._records = list(state.issued), dict(state.records)
        for prompt_id, record in self._records.items():
            self._note(prompt_id, record)

    def statistics(self) -> dict[str, float]:
        """Occurrences by dataset, where there are several, and prompts by what is known of them."""
        stats = {}
        if len(self.names) > 1:
            stats = {f"curriculum/issued/{name}": float(n) for name, n in zip(self.names, self._issued, strict=True)}
        if not self.watches:
            return stats
        stats |= {"curriculum/left_out": float(self.left_out), "curriculum/visited": float(len(self._records))}
        if self._rules.config.solved is not None:
            solved = [c.solved(cursor.epoch) for c, cursor in zip(self._chances, self._cursors, strict=True)]
            stats["curriculum/solved"] = float(sum(solved))
        if (difficulty := self._rules.config.difficulty) is not None:
            pools = Counter(pool_of(record, difficulty) for record in self._records.values())
            stats |= {f"curriculum/{pool.value}": float(pools[pool]) for pool in Pool}
        return stats

    def _note(self, prompt_id: int, record: PromptRecord) -> None:
        dataset = self.dataset(prompt_id)
        row = prompt_id - int(self._starts[dataset])
        self._chances[dataset].note(row, self._rules.solved_until(record), self._rules.chance(record))
