"""Which row is asked for next: several datasets in proportion to their weights, each in a seeded order, prompts by what
is known of them.

    weights      the dataset whose share of all occurrences is furthest below its weight is next
    order        each pass over a dataset is its own permutation, a function of seed and pass
    prompts      a pass leaves a prompt out by the chance that its record gives it (prompts), a coin that is a function
                 of seed, pass and prompt

There is no other random state, so the next row is a function of the seed and of what the ledger's log holds: which
occurrences were issued, and how rollouts ended. A Dataflow that is started again asks for the same rows. A pass in
which every prompt would be left out leaves out none.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from astraflow.dataflow.config import CurriculumConfig, DataflowConfig
from astraflow.dataflow.ledger_events import Visit
from astraflow.dataflow.prompts import Pool, PromptRecord, PromptRules, pool_of
from astraflow.errors import DataError

BLOCK = 4096
"""Rows that are looked at together for one that may be asked for."""


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
        self._order = self._permutation()
        self._place: np.ndarray | None = None
        """Position of each row in the order, where it was needed."""
        self._left: tuple[int, np.ndarray] | None = None
        """The pass that was left last, and its order."""

    def seek(self, issued: int) -> None:
        """Continue after so many occurrences, none of them left out."""
        self.move(*divmod(issued, self.rows))

    def move(self, epoch: int, position: int) -> None:
        """Continue at a position."""
        if epoch != self.epoch:
            left = self._left
            self._left = self.epoch, self._order
            self.epoch = epoch
            # to and fro between two passes is quick: where nothing is wanted, each search looks into the next one
            self._order = left[1] if left is not None and left[0] == epoch else self._permutation()
            self._place = None
        self.position = position

    def after(self, row: int, epoch: int) -> None:
        """Continue after an occurrence of a row."""
        self.move(epoch, 0)
        if self._place is None:
            self._place = np.argsort(self._order)
        self.position = int(self._place[row]) + 1

    def next(self) -> tuple[int, int]:
        """(row, epoch) of the next occurrence."""
        row = int(self.ahead(1)[0])
        self.position += 1
        return row, self.epoch

    def ahead(self, most: int) -> np.ndarray:
        """Return the rows that come next, at most so many, all of one pass: of the next where it has ended."""
        if self.position == self.rows:
            self.move(self.epoch + 1, 0)
        return self._order[self.position : self.position + most]

    def _permutation(self) -> np.ndarray:
        return np.random.default_rng([self._seed, self.epoch, *self._number]).permutation(self.rows)


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
        self._seed = seed
        self._rules = PromptRules(rules or CurriculumConfig())
        self._cursors = [DatasetCursor(rows, seed, number) for number, rows in enumerate(sizes.values())]
        self._starts = np.cumsum([0, *sizes.values()])
        shares = np.array(weights or [1.0] * len(sizes))
        self._shares = shares / shares.sum()
        self._issued = [0] * len(sizes)
        self._records: dict[int, PromptRecord] = {}
        # what the records imply, so that neither a search that finds few or none nor statistics read all of them
        self._closed: np.ndarray | None = np.zeros(self._starts[-1], np.int64) if self.watches else None
        """The first pass that may ask for each prompt."""
        self._solved = np.zeros(self._starts[-1] if self.watches else 0, np.int64)
        """The first pass that does not leave each prompt out as solved."""
        self._pools: Counter[Pool] = Counter()

    def next(self) -> tuple[int, int]:
        """(prompt_id, epoch) of the next occurrence."""
        lacking = self._shares * (sum(self._issued) + 1) - self._issued
        dataset = int(lacking.argmax())
        self._issued[dataset] += 1
        cursor, start = self._cursors[dataset], int(self._starts[dataset])
        if self._closed is None:
            row, epoch = cursor.next()
            return start + row, epoch
        closed = self._closed[start : start + cursor.rows]
        first: tuple[int, int, int] | None = None
        # the rest of this pass, and a whole one after it
        most = 2 * cursor.rows - cursor.position
        looked = 0
        while looked < most:
            rows = cursor.ahead(min(BLOCK, most - looked))
            first = first or (int(rows[0]), cursor.epoch, cursor.position)
            for place in np.flatnonzero(closed[rows] <= cursor.epoch).tolist():
                if self._asks_for(start + int(rows[place]), cursor.epoch):
                    self.left_out += looked + place
                    cursor.position += place + 1
                    return start + int(rows[place]), cursor.epoch
            looked += len(rows)
            cursor.position += len(rows)
        assert first is not None
        row, epoch, position = first
        cursor.move(epoch, position + 1)
        return start + row, epoch

    def issued(self, prompt_id: int, epoch: int) -> None:
        """An occurrence was issued, as the log says: continue after it."""
        dataset = self.dataset(prompt_id)
        self._issued[dataset] += 1
        self._cursors[dataset].after(prompt_id - int(self._starts[dataset]), epoch)

    def visited(self, prompt_id: int, epoch: int, visit: Visit | None) -> None:
        """A rollout of a prompt ended, now or as the log says; None: without any reward."""
        if visit is not None and self._closed is not None:
            record = self._records.setdefault(prompt_id, PromptRecord())
            self._count(record, -1)
            self._rules.visited(record, visit, epoch)
            self._stands(prompt_id, record)

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
        if self._closed is not None:
            self._closed[:] = self._solved[:] = 0
            self._pools.clear()
            for prompt_id, record in self._records.items():
                self._stands(prompt_id, record)

    def statistics(self) -> dict[str, float]:
        """Occurrences by dataset, where there are several, and prompts by what is known of them."""
        stats = {}
        if len(self.names) > 1:
            stats = {f"curriculum/issued/{name}": float(n) for name, n in zip(self.names, self._issued, strict=True)}
        if not self.watches:
            return stats
        stats |= {"curriculum/left_out": float(self.left_out), "curriculum/visited": float(len(self._records))}
        if self._rules.config.solved is not None:
            passes = zip(self._cursors, self._starts, strict=False)
            solved = [(self._solved[at : at + cursor.rows] > cursor.epoch).sum() for cursor, at in passes]
            stats["curriculum/solved"] = float(sum(solved))
        if self._rules.config.difficulty is not None:
            stats |= {f"curriculum/{pool.value}": float(self._pools[pool]) for pool in Pool}
        return stats

    def _stands(self, prompt_id: int, record: PromptRecord) -> None:
        """Keep what a prompt's new record implies."""
        assert self._closed is not None
        self._closed[prompt_id] = self._rules.closed_until(record)
        self._solved[prompt_id] = self._rules.solved_until(record)
        self._count(record, 1)

    def _count(self, record: PromptRecord, one: int) -> None:
        difficulty = self._rules.config.difficulty
        if difficulty is not None and record.visits:
            self._pools[pool_of(record, difficulty)] += one

    def _asks_for(self, prompt_id: int, epoch: int) -> bool:
        record = self._records.get(prompt_id)
        if record is None:
            return True
        chance = self._rules.probability(record, epoch)
        return chance >= 1 or (chance > 0 and self._coin(prompt_id, epoch) < chance)

    def _coin(self, prompt_id: int, epoch: int) -> float:
        """Uniform in [0, 1)."""
        digest = hashlib.blake2b(f"{self._seed}/{epoch}/{prompt_id}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64
