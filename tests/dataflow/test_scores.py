"""CASES "Evaluation": avg@k, pass@k and their intervals."""

import numpy as np
import pytest

from astraflow.core.data import Value
from astraflow.dataflow.scores import PromptScores, cluster_bootstrap, pass_at_k, score_dataset


def prompt(*rewards: float, invalid: int = 0, greedy: bool | None = None) -> PromptScores:
    return PromptScores([Value(reward) for reward in rewards], invalid, greedy)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(8, 1, 4, 0.5), (4, 2, 2, 0.8333333), (2, 1, 8, 1.0), (2, 0, 8, 0.0), (1, 1, 1, 1.0), (0, 0, 4, 0.0)],
)
def test_pass_at_k(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-7)


def test_two_prompts_of_four_runs_with_one_success() -> None:
    scores = [prompt(1.0, 0, 0, 0), prompt(0.0, 0, 0, 0)]
    result = score_dataset(scores, 4, seed=1)
    assert (result.avg_at_k, result.pass_at_k, result.k) == (12.5, 50.0, 4)
    assert (result.correct, result.total, result.sample_count, result.greedy) == (1, 2, 8, None)
    assert result.mean_reward == 0.125


def test_pass_at_fewer_than_all_samples_and_its_interval() -> None:
    scores = [prompt(1.0, *[0.0] * 7) for _ in range(4)]
    result = score_dataset(scores, 4, seed=1)
    assert (result.avg_at_k, result.pass_at_k, result.k) == (12.5, pytest.approx(50.0), 4)
    assert result.pass_at_k_interval == pytest.approx((50.0, 50.0))
    mixed = score_dataset([prompt(1.0, 0.0), prompt(0.0, 0.0)] * 20, 2, seed=1)
    low, high = mixed.pass_at_k_interval
    assert low < mixed.pass_at_k == 50.0 < high
    assert (low, high) == pytest.approx((2 * mixed.avg_at_k_interval[0], 2 * mixed.avg_at_k_interval[1]))


def test_samples_without_a_reward_are_wrong_and_counted() -> None:
    result = score_dataset([prompt(1.0, 0.5, invalid=2, greedy=True)], 4, seed=1)
    assert (result.avg_at_k, result.invalid, result.mean_reward, result.greedy) == (25.0, 2, 0.75, 100.0)


def test_a_reward_counts_as_right_from_one_on() -> None:
    assert prompt(1.0, 1 - 1e-7, 0.999, 2.0).correct == 3


def test_the_part_named_correct_decides_whatever_a_bonus_or_penalty_adds() -> None:
    def answered(value: float, correct: float) -> Value:
        return Value(value, {"correct": correct, "format": 1.0})

    assert PromptScores([answered(0.8, 1.0), answered(1.1, 1.0), answered(1.2, 0.0)]).correct == 2


def test_the_interval_is_seeded_and_over_prompts() -> None:
    means = np.array([0.0] * 50 + [1.0] * 50)
    low, high = cluster_bootstrap(means, seed=3)
    assert (low, high) == cluster_bootstrap(means, seed=3) != cluster_bootstrap(means, seed=4)
    assert low == pytest.approx(0.4, abs=0.02)
    assert high == pytest.approx(0.6, abs=0.02)
    # a prompt of eight samples is one cluster, not eight
    assert cluster_bootstrap(np.array([0.5]), seed=1) == (0.5, 0.5)
