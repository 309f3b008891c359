"""Right values and properties of bin packing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.errors import DataError
from astraflow.train_worker.packing import first_fit_decreasing, karmarkar_karp, micro_batches, split_groups


def sums(lengths: list[int], bins: list[list[int]]) -> list[int]:
    return [sum(lengths[i] for i in items) for items in bins]


def test_first_fit_decreasing() -> None:
    assert sums([1, 2, 3, 4], first_fit_decreasing([1, 2, 3, 4], 5)) == [5, 5]


def test_an_item_above_the_cap_is_an_error() -> None:
    with pytest.raises(DataError, match="row 1 has 6 tokens"):
        first_fit_decreasing([1, 6], 5)


def test_karmarkar_karp() -> None:
    assert sums([1, 2, 3, 4], karmarkar_karp([1, 2, 3, 4], 2)) == [5, 5]


def test_karmarkar_karp_of_equal_count() -> None:
    lengths = list(range(1, 13))
    bins = karmarkar_karp(lengths, 4, equal_count=True)
    assert [len(items) for items in bins] == [3, 3, 3, 3]
    assert max(sums(lengths, bins)) - min(sums(lengths, bins)) <= 4


def test_equal_count_needs_a_divisor() -> None:
    with pytest.raises(ValueError, match="equal count"):
        karmarkar_karp([1, 2, 3], 2, equal_count=True)


def test_bins_are_rounded_up_to_the_ranks() -> None:
    ranks = micro_batches([5, 5, 5], max_tokens=5, dp_size=2)
    assert [len(bins) for bins in ranks] == [2, 2]
    assert sorted(i for bins in ranks for items in bins for i in items) == [0, 1, 2]
    assert micro_batches([1], max_tokens=5, dp_size=4) == [[[0]], [[]], [[]], [[]]]
    assert micro_batches([], max_tokens=5, dp_size=2) == [[], []]


def test_groups_stay_whole() -> None:
    assert split_groups([7, 7, 3, 3, 7, 5], 2) == [[0, 1, 4, 2, 3], [5]]
    with pytest.raises(ValueError, match="1 groups"):
        split_groups([7, 7], 2)


lengths_and_cap = st.lists(st.integers(1, 50), max_size=60)


@given(lengths_and_cap, st.integers(50, 200), st.integers(1, 5))
def test_every_row_is_in_exactly_one_bin_under_the_cap(lengths: list[int], cap: int, dp: int) -> None:
    ranks = micro_batches(lengths, cap, dp)
    assert len({len(bins) for bins in ranks}) == 1
    bins = [items for bins in ranks for items in bins]
    assert sorted(i for items in bins for i in items) == list(range(len(lengths)))
    assert all(total <= cap for total in sums(lengths, bins))


@given(lengths_and_cap, st.integers(1, 6))
def test_balanced_bins_partition(lengths: list[int], k: int) -> None:
    bins = karmarkar_karp(lengths, k)
    assert len(bins) == k
    assert sorted(i for items in bins for i in items) == list(range(len(lengths)))
    assert max(sums(lengths, bins)) - min(sums(lengths, bins)) <= max(lengths, default=0)
    whole = lengths[: len(lengths) // k * k]
    equal = karmarkar_karp(whole, k, equal_count=True)
    assert {len(items) for items in equal} == {len(whole) // k}
