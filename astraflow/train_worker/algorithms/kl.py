"""KL(π‖ref) estimated on tokens that π sampled, and exactly where the whole distribution is at hand.

With d = log π − log ref (Schulman, "Approximating KL divergence", 2020):

| kind | value | unbiased value | gradient when used as a loss, samples fixed |
|---|---|---|---|
| k1 | d | yes | none: E[∇ log π] = 0; put it into the reward instead |
| k2 | d² / 2 | no | that of KL(π‖ref), exactly in expectation |
| k3 | e^−d − 1 + d | yes, and ≥ 0 | that of KL(ref‖π) at first order |
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(
    logprobs_T: Tensor, ref_logprobs_T: Tensor, kind: KLEstimator = "k3", clamp: float | None = 10.0
) -> Tensor:
    """Return the estimate of each token, [T]; the *result* is clamped to ± `clamp`. ValueError on another kind."""
    d = logprobs_T - ref_logprobs_T
    if kind == "k1":
        estimate = d
    elif kind == "k2":
        estimate = d.square() / 2
    elif kind == "k3":
        estimate = torch.expm1(-d) + d
    else:
        raise ValueError(f"unknown KL estimator '{kind}'; known: k1, k2, k3")
    return estimate if clamp is None else estimate.clamp(-clamp, clamp)


def exact_kl(logits_TV: Tensor, ref_logits_TV: Tensor) -> Tensor:
    """KL(softmax(logits) ‖ softmax(ref_logits)) of each token, [T]."""
    logp, logq = logits_TV.log_softmax(-1), ref_logits_TV.log_softmax(-1)
    return (logp.exp() * (logp - logq)).sum(-1)
