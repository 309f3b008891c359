"""LAW 14. KL and entropy estimators: value and gradient are checked against the exact ones of a tabular policy;
the sign is tested.
"""

from __future__ import annotations

import pytest
import torch

from astraflow.train_worker.algorithms.kl import KLEstimator, exact_kl, kl_estimate
from astraflow.train_worker.engine.logprobs import entropy_of

POLICY = torch.tensor([0.3, -1.2, 0.7, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.1, -0.9, 0.2, 0.8], dtype=torch.float64)


def expected(kind: KLEstimator, logits: torch.Tensor, ref_logits: torch.Tensor) -> torch.Tensor:
    """E over π of the estimator, by enumeration; the sampling weights carry no gradient, as in a loss on samples."""
    logp, logq = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    return (logp.exp().detach() * kl_estimate(logp, logq, kind, clamp=None)).sum()


def gradient(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_unbiased_values(kind: KLEstimator) -> None:
    torch.testing.assert_close(expected(kind, POLICY, REFERENCE), exact_kl(POLICY, REFERENCE))


def test_k2_is_right_to_second_order() -> None:
    for scale, bound in ((1.0, 0.3), (0.1, 0.03), (0.01, 0.003)):
        near = POLICY + scale * (REFERENCE - POLICY)
        exact = exact_kl(POLICY, near)
        assert abs(expected("k2", POLICY, near) / exact - 1) < bound


def test_the_gradient_of_k2_is_that_of_the_exact_kl() -> None:
    logits = POLICY.clone().requires_grad_()
    exact = gradient(exact_kl(logits, REFERENCE), logits)
    torch.testing.assert_close(gradient(expected("k2", logits, REFERENCE), logits), exact)


def test_k1_as_a_loss_has_no_gradient_and_as_a_reward_the_exact_one() -> None:
    logits = POLICY.clone().requires_grad_()
    torch.testing.assert_close(gradient(expected("k1", logits, REFERENCE), logits), torch.zeros(4, dtype=torch.float64))
    logp = logits.log_softmax(-1)
    penalty = kl_estimate(logp, REFERENCE.log_softmax(-1), "k1", clamp=None).detach()
    score = (logp.exp().detach() * penalty * logp).sum()
    exact = gradient(exact_kl(logits, REFERENCE), logits)
    torch.testing.assert_close(gradient(score, logits), exact)


def test_the_gradient_of_k3_is_that_of_the_forward_kl() -> None:
    logits = POLICY.clone().requires_grad_()
    forward = gradient(exact_kl(REFERENCE, logits), logits)
    torch.testing.assert_close(gradient(expected("k3", logits, REFERENCE), logits), forward)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_the_sign_pulls_towards_the_reference(kind: KLEstimator) -> None:
    logits = POLICY.clone().requires_grad_()
    before = exact_kl(logits, REFERENCE)
    after = exact_kl(logits - 0.1 * gradient(expected(kind, logits, REFERENCE), logits), REFERENCE)
    assert before > 0
    assert after < before


def test_entropy_value_gradient_and_sign() -> None:
    logits = POLICY.clone().requires_grad_()
    probabilities = logits.softmax(-1)
    exact = -(probabilities * probabilities.log()).sum()
    value = entropy_of(logits[None])[0]
    torch.testing.assert_close(value, exact)
    torch.testing.assert_close(gradient(value, logits), gradient(exact, logits))
    uniform = torch.zeros(4, dtype=torch.float64)
    assert entropy_of(uniform[None])[0] > value


def test_entropy_where_a_token_is_impossible() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    value = entropy_of(logits).sum()
    value.backward()
    assert value.item() == pytest.approx(0.693147, abs=1e-6)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
