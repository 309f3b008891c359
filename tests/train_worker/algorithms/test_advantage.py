"""Right values of reward shaping, GAE and credit over turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from astraflow.train_worker.algorithms.advantage import (
    discounted_success,
    gae,
    outcome_advantages,
    outcome_rewards,
    overlong_penalty,
    shape_rewards,
    turn_returns,
)
from astraflow.train_worker.algorithms.normalisation import normalise
from astraflow.train_worker.config import NormConfig


def one_row(mask: list[int], outcome: float = 1.0, **options: Any) -> Tensor:
    """GAE of one row with a reward on its last sampled token, on the sampled tokens."""
    masks, rows = torch.tensor(mask), torch.tensor([0, len(mask)])
    values = options.pop("values", None)
    rewards = outcome_rewards(torch.tensor([outcome]), masks, rows)
    value = torch.zeros(len(mask)) if values is None else torch.tensor(values)
    return gae(rewards, value, masks, rows, **options)[0][masks.bool()]


@pytest.mark.parametrize("mask", [[0, 1, 1, 1, 0, 0], [0, 1, 1, 0, 0, 1, 0, 0], [1, 1, 1], [0, 0, 1, 0, 1, 0, 1, 0]])
def test_gaps_cost_nothing(mask: list[int]) -> None:
    assert one_row(mask).tolist() == [1, 1, 1]
    assert one_row(mask, gamma=0.9, lam=0.8).tolist() == pytest.approx([0.5184, 0.72, 1])


def test_gae_with_values() -> None:
    advantages = one_row([0, 1, 1, 1, 0, 0], values=[0.1, 0.2, 0.3, 0.4, 0, 0], gamma=1.0, lam=0.95)
    assert advantages.tolist() == pytest.approx([0.7365, 0.67, 0.6])


def test_returns_are_advantages_plus_values() -> None:
    mask, rows = torch.tensor([0, 1, 1]), torch.tensor([0, 3])
    values = torch.tensor([0.5, 0.2, 0.4])
    advantages, returns = gae(torch.tensor([0.0, 0, 1]), values, mask, rows, gamma=0.9, lam=0.8)
    assert returns.tolist() == pytest.approx([0, *(advantages + values)[1:].tolist()])


def test_trailing_tool_text_loses_nothing() -> None:
    mask = torch.tensor([0, 0, 1, 1, 0, 0, 1, 0])
    rows = torch.tensor([0, 5, 8])
    normal = normalise(torch.tensor([1.0, 0.0]), torch.tensor([4, 4]), NormConfig())
    expected = [0, 0, 0.7071, 0.7071, 0, 0, -0.7071, 0]
    assert outcome_advantages(normal, mask, rows).tolist() == pytest.approx(expected, abs=1e-4)
    through_gae, _ = gae(outcome_rewards(normal, mask, rows), torch.zeros(8), mask, rows)
    assert through_gae.tolist() == pytest.approx(expected, abs=1e-4)


def test_rows_of_several_lengths_and_an_empty_one() -> None:
    mask, rows = torch.tensor([1, 0, 0, 1, 1, 1]), torch.tensor([0, 1, 3, 6])
    rewards = outcome_rewards(torch.tensor([2.0, 5.0, 1.0]), mask, rows)
    assert rewards.tolist() == [2, 0, 0, 0, 0, 1]
    advantages, _ = gae(rewards, torch.zeros(6), mask, rows, gamma=0.5)
    assert advantages.tolist() == [2, 0, 0, 0.25, 0.5, 1]


def test_a_reward_outside_the_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="outside"):
        gae(torch.ones(2), torch.zeros(2), torch.tensor([1, 0]), torch.tensor([0, 2]))


def test_overlong() -> None:
    penalty = overlong_penalty(torch.tensor([6, 9, 12]), max_new_tokens=10, buffer_len=4, factor=1.0)
    assert shape_rewards(torch.ones(3), penalty).tolist() == [1, 0.25, 0]


def test_shaping() -> None:
    raw = torch.tensor([0.0, 1.0, 9.0])
    assert shape_rewards(raw, bias=-0.5, scaling=2.0, clip=3.0).tolist() == [-1, 1, 3]
    assert shape_rewards(raw, torch.tensor([0.0, 0.5, 0.5]), clip=1.0).tolist() == [0, 0.5, 0.5]


def test_multi_turn_discount() -> None:
    assert discounted_success(torch.ones(3), torch.tensor([1, 2, 3]), 0.9).tolist() == pytest.approx([1, 0.9, 0.81])


def test_credit_along_a_chain() -> None:
    assert turn_returns([None, 0, 1], [None, None, 10], 0.9) == pytest.approx([8.1, 9, 10])


def test_siblings_do_not_get_each_others_credit() -> None:
    assert turn_returns([None, 0, 0], [None, 10, None], 0.9) == pytest.approx([4.5, 10, 0])
    assert turn_returns([None, None], [None, 10], 0.9) == [0, 10]


def test_a_turn_continues_an_earlier_one() -> None:
    with pytest.raises(ValueError, match="not before"):
        turn_returns([1, None], [None, 1.0], 0.9)


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4),
    st.floats(0.5, 1),
    st.floats(0.5, 1),
    st.randoms(use_true_random=False),
)
def test_gae_equals_the_recursion_row_by_row(masks: list[list[bool]], gamma: float, lam: float, chance: object) -> None:
    draw = chance.uniform  # type: ignore[attr-defined]
    mask = torch.tensor([m for row in masks for m in row])
    rows = torch.tensor([0, *torch.tensor([len(row) for row in masks]).cumsum(0).tolist()])
    values = torch.tensor([draw(-1, 1) for _ in range(len(mask))])
    rewards = torch.where(mask, torch.tensor([draw(-1, 1) for _ in range(len(mask))]), torch.zeros(()))
    bootstrap, truncated = torch.tensor([draw(-1, 1) for _ in masks]), torch.tensor([draw(0, 1) > 0.5 for _ in masks])
    actual, _ = gae(rewards, values, mask, rows, gamma=gamma, lam=lam, bootstrap_N=bootstrap, truncated_N=truncated)
    expected = torch.zeros(len(mask))
    for row in range(len(masks)):
        running, following = 0.0, float(bootstrap[row]) if truncated[row] else 0.0
        for t in reversed(range(int(rows[row]), int(rows[row + 1]))):
            if mask[t]:
                running = float(rewards[t]) + gamma * following - float(values[t]) + gamma * lam * running
                following = float(values[t])
                expected[t] = running
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
