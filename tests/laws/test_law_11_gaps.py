"""LAW 11. Masked tokens neither discount nor carry reward: γ and λ run over sampled tokens only."""

from __future__ import annotations

import pytest
import torch

from astraflow.train_worker.algorithms.advantage import gae, outcome_rewards


@pytest.mark.parametrize("gap", [0, 1, 2, 30])
def test_the_width_of_a_gap_changes_nothing(gap: int) -> None:
    mask = torch.tensor([0, 1, 1] + [0] * gap + [1, 0])
    rows = torch.tensor([0, len(mask)])
    rewards = outcome_rewards(torch.ones(1), mask, rows)
    # a value on a tool token, however large, enters nothing
    values = torch.where(mask.bool(), torch.zeros(()), torch.full((), 99.0))
    advantages, returns = gae(rewards, values, mask, rows, gamma=0.9, lam=0.8)
    assert advantages[mask.bool()].tolist() == pytest.approx([0.5184, 0.72, 1])
    assert not advantages[~mask.bool()].any()
    assert not returns[~mask.bool()].any()
