"""Right values of group statistics and normalisation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.train_worker.algorithms.normalisation import group_statistics, normalise, normalise_advantages
from astraflow.train_worker.config import NormConfig

GRPO = NormConfig()
RLOO = NormConfig(std_level="none", mean_leave_one_out=True)


def run(values: list[float], groups: list[int], norm: NormConfig, samples: list[int] | None = None) -> list[float]:
    sample_id = None if samples is None else torch.tensor(samples)
    return normalise(torch.tensor(values), torch.tensor(groups), norm, sample_id).tolist()


def test_grpo() -> None:
    assert run([1, 0, 0, 1], [7] * 4, GRPO) == pytest.approx([0.8660104, -0.8660104, -0.8660104, 0.8660104], abs=1e-6)


def test_leave_one_out() -> None:
    assert run([1, 2, 3, 4], [0] * 4, RLOO) == pytest.approx([-2, -2 / 3, 2 / 3, 2])


def test_statistics_are_per_group_id() -> None:
    assert run([1, 2, 3], [1, 1, 2], GRPO) == pytest.approx([-0.70710, 0.70710, 0], abs=1e-5)
    assert run([1, 3, 2], [1, 2, 1], GRPO) == pytest.approx([-0.70710, 0, 0.70710], abs=1e-5)


@pytest.mark.parametrize("norm", [GRPO, RLOO, NormConfig(std_level="none"), NormConfig(std_level="batch")])
@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3, 1e6, -7.7])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_equal_rewards_are_exactly_zero(norm: NormConfig, reward: float, n: int) -> None:
    assert run([reward] * n + [0.3, 0.7], [0] * n + [1, 1], norm)[:n] == [0.0] * n


def test_rows_of_one_sample_enter_once() -> None:
    # sample 5 branched into three rows; without sample ids its reward would weigh three times
    values, groups, samples = [1.0, 1.0, 1.0, 0.0], [0] * 4, [5, 5, 5, 6]
    assert run(values, groups, GRPO, samples) == pytest.approx([0.70710, 0.70710, 0.70710, -0.70710], abs=1e-4)
    statistics = group_statistics(torch.tensor(values), torch.tensor(groups), torch.tensor(samples))
    assert statistics.count.tolist() == [2] * 4
    assert statistics.mean.tolist() == [0.5] * 4


def test_a_sample_may_be_in_several_groups() -> None:
    # two roles of one episode: a group each
    assert run([1, 0, 4, 0], [0, 0, 1, 1], GRPO, [5, 6, 5, 6]) == pytest.approx([0.7071, -0.7071] * 2, abs=1e-4)


def test_levels() -> None:
    values, groups = [1.0, 2.0, 5.0, 8.0], [0, 0, 1, 1]
    whole = torch.tensor(values)
    batch = NormConfig(mean_level="batch", std_level="batch")
    expected = ((whole - 4) / (whole.std() + 1e-5)).tolist()
    assert run(values, groups, batch) == pytest.approx(expected)
    centred = NormConfig(mean_level="group", std_level="batch")
    assert run(values, groups, centred) == pytest.approx(
        [v / (whole.std().item() + 1e-5) for v in (-0.5, 0.5, -1.5, 1.5)]
    )
    scaled = NormConfig(mean_level="none", std_level="group")
    assert run([1, 3, 2, 2], groups, scaled)[2:] == [2, 2]
    assert run(values, groups, NormConfig(mean_level="none", std_level="none")) == values


def test_advantages_are_normalised_over_sampled_tokens() -> None:
    norm = NormConfig(mean_level="batch", std_level="batch")
    out = normalise_advantages(torch.tensor([9.0, 1, 3, 9]), torch.tensor([0, 1, 1, 0]), torch.zeros(4), norm)
    assert out.tolist() == pytest.approx([0, -0.7071, 0.7071, 0], abs=1e-4)


def test_nothing_sampled() -> None:
    norm = NormConfig(mean_level="batch", std_level="batch")
    assert normalise_advantages(torch.ones(2), torch.zeros(2), torch.zeros(2), norm).tolist() == [0, 0]


rewards = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)


@given(st.lists(rewards, min_size=1, max_size=4), st.randoms())
def test_row_order_changes_nothing(groups: list[list[float]], chance: object) -> None:
    rows = [(value, index) for index, group in enumerate(groups) for value in group]
    values, ids = [row[0] for row in rows], [row[1] for row in rows]
    order = list(range(len(rows)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    straight = run(values, ids, GRPO)
    shuffled = run([values[i] for i in order], [ids[i] for i in order], GRPO)
    assert [straight[i] for i in order] == pytest.approx(shuffled, abs=1e-4)
    for index, group in enumerate(groups):
        own = [s for s, i in zip(straight, ids, strict=True) if i == index]
        assert math.isclose(sum(own), 0, abs_tol=1e-3)
        assert len(set(group)) > 1 or own == [0.0] * len(own)
