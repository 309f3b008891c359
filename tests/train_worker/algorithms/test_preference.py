"""Right values of the losses on pairs."""

from __future__ import annotations

import math

import pytest
import torch

from astraflow.train_worker.algorithms.preference import dpo_loss, ipo_loss, preference_margin, reward_model_loss

ROWS = torch.tensor([0, 3, 5])
MASK = torch.tensor([0, 1, 1, 0, 1])


def test_reward_model() -> None:
    assert reward_model_loss(torch.ones(1), torch.zeros(1)).item() == pytest.approx(0.313262, abs=1e-6)


def test_dpo_of_identical_policies() -> None:
    logprobs = torch.tensor([-1.0, -2, -3, -4, -5])
    assert dpo_loss(logprobs, logprobs, MASK, ROWS).item() == pytest.approx(0.693147, abs=1e-6)


def test_dpo_by_hand() -> None:
    logprobs, ref = torch.tensor([9.0, -1, -2, 9, -3]), torch.tensor([0.0, -2, -2, 0, -1])
    assert preference_margin(logprobs, ref, MASK, ROWS).item() == pytest.approx(3.0)
    assert dpo_loss(logprobs, ref, MASK, ROWS, beta=0.5).item() == pytest.approx(math.log1p(math.exp(-1.5)))
    smoothed = 0.9 * math.log1p(math.exp(-1.5)) + 0.1 * math.log1p(math.exp(1.5))
    assert dpo_loss(logprobs, ref, MASK, ROWS, beta=0.5, label_smoothing=0.1).item() == pytest.approx(smoothed)


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_ipo_is_zero_at_its_margin(beta: float) -> None:
    margin = 1 / (2 * beta)
    logprobs = torch.tensor([0.0, margin, margin, 0, 0])
    assert ipo_loss(logprobs, torch.zeros(5), MASK, ROWS, beta=beta).item() == pytest.approx(0, abs=1e-10)
    assert ipo_loss(torch.zeros(5), torch.zeros(5), MASK, ROWS, beta=beta).item() == pytest.approx(margin**2)


def test_rows_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="pairs"):
        preference_margin(torch.zeros(5), torch.zeros(5), MASK, torch.tensor([0, 5]))
