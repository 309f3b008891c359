"""LAW 9. Equal rewards give exactly zero advantage, tested on rewards and not on a tiny std; all-masked gives loss
0, finite.
"""

from __future__ import annotations

import pytest
import torch

from astraflow.train_worker.algorithms.aggregation import aggregate, token_weights
from astraflow.train_worker.algorithms.losses import decoupled_ppo_loss, gspo_loss, ppo_loss, sapo_loss
from astraflow.train_worker.algorithms.normalisation import normalise
from astraflow.train_worker.config import NormConfig


@pytest.mark.parametrize("reward", [0.1, 1 / 3, -1e-30, 123456.789])
def test_equal_rewards(reward: float) -> None:
    assert normalise(torch.full((5,), reward), torch.ones(5), NormConfig()).tolist() == [0.0] * 5


def test_rewards_that_differ_by_little_are_not_equal() -> None:
    out = normalise(torch.tensor([1.0, 1.0 + 1e-3]), torch.ones(2), NormConfig(eps=1e-9))
    assert out.tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-3)


@pytest.mark.parametrize("loss", ["ppo", "decoupled", "gspo", "sapo"])
def test_all_masked(loss: str) -> None:
    logprobs = torch.randn(4, requires_grad=True)
    old, advantages, mask, rows = torch.full((4,), -torch.inf), torch.ones(4), torch.zeros(4), torch.tensor([0, 4])
    result = {
        "ppo": lambda: ppo_loss(logprobs, old, advantages, mask),
        "decoupled": lambda: decoupled_ppo_loss(logprobs, old, old, advantages, mask),
        "gspo": lambda: gspo_loss(logprobs, old, advantages, mask, rows),
        "sapo": lambda: sapo_loss(logprobs, old, advantages, mask),
    }[loss]()
    total = aggregate(result.loss, token_weights(mask, rows))
    total.backward()
    assert total.item() == 0.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0] * 4
