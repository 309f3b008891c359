"""Paired scores: effect and one-sided sign-flip test."""

import itertools
import random

import pytest

from astraflow.errors import DataError
from astraflow.evolution.traces import paired
from astraflow.evolution.traces.paired import compare, sign_flip_p_value


def test_effect_is_the_mean_difference() -> None:
    found = compare({"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
    assert found.effect == 0.5
    assert found.p_value == 0.5


def test_the_exact_p_value_counts_sign_patterns() -> None:
    differences = [0.5, -0.25, 1.0, 0.75]
    observed = sum(differences)
    patterns = list(itertools.product((1, -1), repeat=4))
    sizes = [abs(d) for d in differences]
    expected = sum(sum(s * d for s, d in zip(p, sizes, strict=True)) >= observed for p in patterns) / 16
    assert sign_flip_p_value(differences) == expected


@pytest.mark.parametrize("n", [1, 5, 10])
def test_all_better_is_one_pattern_of_all(n: int) -> None:
    assert sign_flip_p_value([1.0] * n) == 1 / 2**n
    assert sign_flip_p_value([0.0] * n) == 1.0
    assert sign_flip_p_value([-1.0] * n) == 1.0


def test_many_cases_are_drawn_and_agree_with_the_exact_count(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(1)
    differences = [source.uniform(-0.5, 1.0) for _ in range(12)]
    exact = sign_flip_p_value(differences)
    monkeypatch.setattr(paired, "EXACT_CASES", 0)
    assert sign_flip_p_value(differences) == pytest.approx(exact, abs=0.01)


def test_other_cases_cannot_be_compared() -> None:
    with pytest.raises(DataError):
        compare({"a": 1.0}, {"b": 1.0})
    with pytest.raises(DataError):
        compare({}, {})
