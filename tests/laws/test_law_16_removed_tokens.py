"""LAW 16. Tokens removed by M2PO or rejection sampling get loss 0 and keep their weight in the denominator unless
configured; Invalid samples never enter the batch and are in neither; the removed share is shown.
"""

from __future__ import annotations

import torch

from astraflow.train_worker.algorithms.aggregation import aggregate, token_weights
from astraflow.train_worker.algorithms.losses import ppo_loss
from astraflow.train_worker.algorithms.m2po import m2po_bounds, m2po_mask
from astraflow.train_worker.algorithms.mismatch import reject, token_ratio

MASK = torch.ones(4, dtype=torch.bool)
ROWS = torch.tensor([0, 4])
BEHAVIOUR = torch.zeros(4)


def test_m2po_removes_from_the_numerator_only() -> None:
    logprobs = torch.tensor([0.1, 2.0, 0.1, 1.0], requires_grad=True)
    weights = token_weights(MASK, ROWS)
    kept = m2po_mask(logprobs, torch.ones(4), MASK, 0.04)
    loss = ppo_loss(logprobs, BEHAVIOUR, torch.ones(4), kept, eps_clip=9.0).loss
    aggregate(loss, weights).backward()
    assert loss[~kept].tolist() == [0, 0]
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.where(kept, -logprobs.detach().exp() / 4, 0.0))


def test_the_bounds_form_gives_the_same_gradient() -> None:
    logprobs = torch.tensor([0.1, 2.0, 0.1, 1.0], requires_grad=True)
    bounds = m2po_bounds(logprobs, torch.ones(4), MASK, 0.04)
    # a hair wider, so that the tokens at the bound itself are inside whatever the rounding
    loss = ppo_loss(
        logprobs, BEHAVIOUR, torch.ones(4), MASK, eps_clip=bounds.eps_low, eps_clip_higher=bounds.eps_high + 1e-6
    )
    aggregate(loss.loss, token_weights(MASK, ROWS)).backward()
    assert loss.clipped.tolist() == [False, True, False, True]
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([-(torch.e**0.1) / 4, 0, -(torch.e**0.1) / 4, 0]))


def test_rejection_removes_from_the_numerator_only() -> None:
    logprobs = torch.tensor([0.0, 1.0, 0.0, 0.0], requires_grad=True)
    kept = reject(token_ratio(logprobs, BEHAVIOUR, MASK).detach(), MASK, upper=2.0)
    aggregate(ppo_loss(logprobs, BEHAVIOUR, torch.ones(4), kept).loss, token_weights(MASK, ROWS)).backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.25, 0, -0.25, -0.25]
