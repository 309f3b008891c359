"""The scheduler alone: thousands of interleavings, with a shadow cache that shows what each row really holds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from astraflow.core.data import ModelRequest
from astraflow.errors import InvariantError
from astraflow.raas.engines.embedded.scheduler import Plan, Scheduler, Sequence


def sequence(rid: str, prompt: list[int]) -> Sequence:
    return Sequence(ModelRequest(rid=rid, input_ids=np.array(prompt)), 8, frozenset(), 0.0)


class ShadowCache:
    """Carries out plans and moves on one (prefix, version) a row instead of tensors."""

    def __init__(self, rows: int) -> None:
        self.rows: list[tuple[bytes, int] | None] = [None] * rows
        self.prefills = 0

    def place(self, plan: Plan, version: int) -> None:
        self._copy(plan.copies)
        for one in plan.prefill:
            self.rows[one.row] = (one.prefix, version)
        self.prefills += len(plan.prefill)
        self._copy(plan.shares)
        for one in plan.placed:
            assert not one.prefix or self.rows[one.row] == (one.prefix, version)

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        read = [self.rows[source] for source, _ in pairs]
        for (_, row), content in zip(pairs, read, strict=True):
            self.rows[row] = content

    move = _copy


@pytest.mark.parametrize("seed", range(200))
def test_any_interleaving_keeps_the_invariants_and_every_prefix_is_of_its_version(seed: int) -> None:
    rng = random.Random(seed)
    capacity = rng.choice([1, 2, 5, 8])
    scheduler, cache, version, submitted, ended = Scheduler(capacity), ShadowCache(capacity), 0, 0, 0
    for _ in range(120):
        for _ in range(rng.choice([0, 0, 1, 4])):
            scheduler.submit(sequence(str(submitted), [rng.randrange(3)] * rng.randrange(1, 4)))
            submitted += 1
        cache.place(scheduler.admit(), version)
        cache.move(scheduler.compact())
        scheduler.validate()
        assert not scheduler.waiting or scheduler.running == capacity
        rows = [row for row in range(scheduler.running) if rng.random() < 0.3]
        ended += len(scheduler.finish(rows))
        if rng.random() < 0.1:
            gone = str(rng.randrange(submitted + 1))
            both = [one for one in (*scheduler.waiting, *scheduler.rows) if one is not None]
            waiting, running = scheduler.withdraw({one for one in both if one.request.rid == gone})
            ended += len(waiting) + len(scheduler.finish(running))
        if rng.random() < 0.1:
            version += 1
            scheduler.forget_prefixes()
    assert ended + scheduler.running + len(scheduler.waiting) == submitted


def test_samples_of_one_prompt_are_prefilled_once() -> None:
    scheduler, cache = Scheduler(8), ShadowCache(8)
    for i in range(8):
        scheduler.submit(sequence(str(i), [1, 2, 3]))
    plan = scheduler.admit()
    cache.place(plan, 0)
    assert len(plan.placed) == 8
    assert cache.prefills == 1
    assert len(plan.shares) == 7


def test_a_late_sample_takes_the_prompt_from_the_row_of_an_earlier_one() -> None:
    scheduler, cache = Scheduler(2), ShadowCache(2)
    for i in range(5):
        scheduler.submit(sequence(str(i), [1, 2, 3]))
    while not scheduler.idle:
        cache.place(scheduler.admit(), 0)
        cache.move(scheduler.compact())
        scheduler.finish([0])
    assert cache.prefills == 1


def test_a_prompt_of_one_token_needs_no_prefill() -> None:
    scheduler = Scheduler(2)
    scheduler.submit(sequence("a", [4]))
    scheduler.submit(sequence("b", [5]))
    plan = scheduler.admit()
    assert [one.request.rid for one in plan.placed] == ["a", "b"]
    assert not plan.prefill


def test_equal_ids_of_other_integer_types_share_and_unequal_ones_never() -> None:
    a = Sequence(ModelRequest(rid="a", input_ids=np.array([1, 0, 9], np.int64)), 1, frozenset(), 0.0)
    b = Sequence(ModelRequest(rid="b", input_ids=np.array([1, 0, 9], np.int32)), 1, frozenset(), 0.0)
    c = Sequence(ModelRequest(rid="c", input_ids=np.array([1, 9], np.int64)), 1, frozenset(), 0.0)
    assert a.prefix == b.prefix != c.prefix


def test_ending_an_empty_row_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="row 0"):
        Scheduler(1).finish([0])
