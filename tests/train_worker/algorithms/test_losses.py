"""Right values of the policy and value losses, and properties that hold for any input."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from astraflow.train_worker.algorithms.aggregation import masked_mean, sequence_mean
from astraflow.train_worker.algorithms.losses import (
    critic_loss,
    decoupled_ppo_loss,
    gspo_loss,
    ppo_loss,
    sapo_loss,
)

RATIO = [1.0, 1.5, 0.5, 3.0]
ADVANTAGE = torch.tensor([1.0, 1.0, -1.0, -1.0])
ALL = torch.ones(4, dtype=torch.bool)


def logs(ratios: list[float]) -> Tensor:
    return torch.tensor(ratios).log()


def close(actual: Tensor, expected: list[float] | float, digits: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=digits, atol=digits)


@pytest.mark.parametrize(
    ("options", "tokens", "mean"),
    [
        ({}, [-1.0, -1.2, 0.8, 3.0], 0.4),
        ({"eps_clip_higher": 0.28}, [-1.0, -1.28, 0.8, 3.0], 0.38),
        ({"c_clip": 2.0}, [-1.0, -1.2, 0.8, 2.0], 0.15),
        ({"eps_clip_higher": 0.28, "c_clip": 2.0}, [-1.0, -1.28, 0.8, 2.0], 0.13),
    ],
)
def test_ppo(options: dict[str, float], tokens: list[float], mean: float) -> None:
    result = ppo_loss(logs(RATIO), torch.zeros(4), ADVANTAGE, ALL, eps_clip=0.2, **options)
    close(result.loss, tokens)
    close(masked_mean(result.loss, ALL), mean)
    assert result.clipped.tolist() == [False, True, True, False]
    assert result.dual_clipped.tolist() == [False, False, False, "c_clip" in options]


@pytest.mark.parametrize(
    ("advantage", "c_clip", "expected"), [(1.0, None, -1.2), (-1.0, None, math.exp(2)), (-1.0, 3.0, 3.0)]
)
def test_ppo_far_from_the_old_policy(advantage: float, c_clip: float | None, expected: float) -> None:
    result = ppo_loss(torch.tensor([2.0]), torch.zeros(1), torch.tensor([advantage]), ALL[:1], c_clip=c_clip)
    close(result.loss, [expected])


def test_all_masked_is_exactly_zero() -> None:
    logprobs = logs(RATIO).requires_grad_()
    loss = masked_mean(ppo_loss(logprobs, torch.zeros(4), ADVANTAGE, ~ALL).loss, ~ALL)
    loss.backward()
    assert loss.item() == 0.0
    assert logprobs.grad is not None
    assert not logprobs.grad.any()


def test_a_clipped_token_has_no_gradient() -> None:
    logprobs = logs(RATIO).requires_grad_()
    ppo_loss(logprobs, torch.zeros(4), ADVANTAGE, ALL).loss.sum().backward()
    assert logprobs.grad is not None
    close(logprobs.grad, [-1.0, 0.0, 0.0, 3.0])


def test_dual_clip_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="c_clip"):
        ppo_loss(torch.zeros(4), torch.zeros(4), ADVANTAGE, ALL, c_clip=1.0)


def test_masked_nan_reaches_neither_value_nor_gradient() -> None:
    logprobs = torch.tensor([0.1, math.nan, -math.inf]).requires_grad_()
    mask = torch.tensor([True, False, False])
    result = ppo_loss(logprobs, torch.tensor([0.0, 0.0, -math.inf]), torch.ones(3), mask)
    masked_mean(result.loss, mask).backward()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()
    assert logprobs.grad[1:].tolist() == [0, 0]


def test_decoupled_is_ppo_when_nothing_is_stale() -> None:
    behaviour = logs([0.3, 0.2, 0.1, 0.4])
    new = behaviour + logs(RATIO)
    decoupled = decoupled_ppo_loss(new, behaviour, behaviour, ADVANTAGE, ALL)
    torch.testing.assert_close(decoupled.loss, ppo_loss(new, behaviour, ADVANTAGE, ALL).loss)


def test_decoupled_clips_around_the_proximal_policy_and_weighs_by_the_behaviour() -> None:
    behaviour, proximal = torch.zeros(4), logs([2.0, 2.0, 0.5, 8.0])
    result = decoupled_ppo_loss(proximal + logs(RATIO), proximal, behaviour, ADVANTAGE, ALL)
    close(result.loss, [-2.0, -2.4, 0.4, 24.0], 1e-5)
    capped = decoupled_ppo_loss(proximal + logs(RATIO), proximal, behaviour, ADVANTAGE, ALL, behav_imp_weight_cap=5.0)
    close(capped.loss, [-2.0, -2.4, 0.4, 15.0], 1e-5)


def test_decoupled_at_the_proximal_policy_is_importance_weighted_reinforce() -> None:
    current = torch.tensor([-1.0, -2.0]).requires_grad_()
    behaviour = torch.tensor([-1.5, -1.0])
    result = decoupled_ppo_loss(current, current.detach(), behaviour, torch.tensor([2.0, -3.0]), ALL[:2])
    result.loss.sum().backward()
    assert current.grad is not None
    close(current.grad, [-2.0 * math.exp(0.5), 3.0 * math.exp(-1.0)])


class TestGSPO:
    log_ratio = torch.tensor([0.1, 0.3, 9.0, 0.2, -0.4, 0.6])
    mask = torch.tensor([1, 1, 0, 1, 1, 1], dtype=torch.bool)
    rows = torch.tensor([0, 3, 6])
    advantage = torch.tensor([1.0, 1, 1, -1, -1, -1])

    def loss(self, eps: float, cu_seqlens: Tensor | None) -> Tensor:
        result = gspo_loss(self.log_ratio, torch.zeros(6), self.advantage, self.mask, cu_seqlens, eps_clip=eps)
        return result.loss

    def test_values(self) -> None:
        close(masked_mean(self.loss(0.2, self.rows), self.mask), 0.2055785)
        close(sequence_mean(self.loss(0.2, self.rows), self.mask, self.rows), -0.0286846)
        close(masked_mean(self.loss(math.inf, self.rows), self.mask), 0.1970174)

    def test_ratios(self) -> None:
        ratio = gspo_loss(self.log_ratio, torch.zeros(6), self.advantage, self.mask, self.rows).ratio
        close(ratio[[0, 3]], [1.221403, 1.142631])

    @pytest.mark.parametrize("table", [None, torch.tensor([0, 3]), torch.tensor([1, 6]), torch.tensor([0, 7, 6])])
    def test_packed_input_needs_its_rows(self, table: Tensor | None) -> None:
        with pytest.raises(ValueError, match="cu_seqlens"):
            self.loss(0.2, table)


def test_sapo() -> None:
    result = sapo_loss(logs(RATIO), torch.zeros(4), ADVANTAGE, ALL, tau_positive=1.0, tau_negative=1.05)
    close(result.loss, [-2.0, -2.489837, 1.415938, 3.393917])


@pytest.mark.parametrize("tau", [{"tau_positive": 0.0}, {"tau_negative": -1.0}])
def test_sapo_refuses_temperatures(tau: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="temperatures"):
        sapo_loss(torch.zeros(4), torch.zeros(4), ADVANTAGE, ALL, **tau)


def test_critic() -> None:
    pair = critic_loss(torch.tensor([0.5, 2.0]), torch.tensor([0.0, 1.0]), torch.ones(2), ALL[:2], value_clip=0.2)
    close(masked_mean(pair, ALL[:2]), 0.41)
    one = critic_loss(torch.ones(1), torch.zeros(1), torch.full((1,), 2.0), ALL[:1], value_clip=0.5)
    close(one, [1.125])
    close(critic_loss(torch.ones(1), torch.zeros(1), torch.full((1,), 2.0), ALL[:1]), [0.5])
    assert not critic_loss(torch.ones(1), torch.zeros(1), torch.full((1,), 2.0), ~ALL[:1]).any()


numbers = st.floats(-5, 5, width=32)


@given(st.lists(st.tuples(numbers, numbers, numbers, st.booleans()), min_size=1, max_size=12))
def test_ppo_is_pessimistic_and_finite(rows: list[tuple[float, float, float, bool]]) -> None:
    new, old, advantage = (torch.tensor([row[i] for row in rows]) for i in range(3))
    mask = torch.tensor([row[3] for row in rows])
    result = ppo_loss(new, old, advantage, mask)
    unclipped = torch.where(mask, -result.ratio * advantage, torch.zeros(()))
    assert torch.isfinite(result.loss).all()
    assert (result.loss >= unclipped).all()
    assert not result.loss[~mask].any()


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12))
def test_at_the_old_policy_every_loss_is_minus_the_advantage(rows: list[tuple[float, float]]) -> None:
    old, advantage = (torch.tensor([row[i] for row in rows]) for i in range(2))
    mask = torch.ones(len(rows), dtype=torch.bool)
    whole = torch.tensor([0, len(rows)])
    for result in (
        ppo_loss(old, old, advantage, mask, c_clip=3.0),
        decoupled_ppo_loss(old, old, old, advantage, mask, behav_imp_weight_cap=2.0),
        gspo_loss(old, old, advantage, mask, whole),
    ):
        torch.testing.assert_close(result.loss, -advantage)
        assert not result.clipped.any()
