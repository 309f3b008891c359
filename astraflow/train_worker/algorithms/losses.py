"""Policy and value losses per token, on packed tensors [T].

Every policy loss returns a `PolicyLoss` of per-token values; `aggregation` makes a scalar of it, with weights that are
the denominator too. Where the mask is 0 the loss is 0. `advantages` carry no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.train_worker.algorithms.mismatch import log_ratio, span_ratio, truncate


@dataclass(frozen=True)
class PolicyLoss:
    """What a policy loss says about each token."""

    loss: Tensor
    """float [T], to be minimised; 0 where nothing was sampled."""
    ratio: Tensor
    """float [T], detached: the ratio that was clipped; 1 where nothing was sampled."""
    clipped: Tensor
    """bool [T], the clip decided, so the token has no gradient."""
    dual_clipped: Tensor
    """bool [T], the dual clip decided."""


def ppo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_clip: float = 0.2,
    eps_clip_higher: float | None = None,
    c_clip: float | None = None,
) -> PolicyLoss:
    """Clipped surrogate: −min(r A, clip(r, 1−ε, 1+ε_high) A), r = π / π_old (PPO, arXiv 1707.06347, eq. 7).

    `eps_clip_higher` is DAPO's clip-higher (arXiv 2503.14476, eq. 10). `c_clip` > 1 bounds the loss of negative
    advantages by −c A (dual clip, arXiv 1912.09729, eq. 5). All tensors are [T].
    """
    ratio = log_ratio(logprobs, old_logprobs, mask).exp()
    return _clipped(ratio, advantages, mask, eps_clip, eps_clip_higher, c_clip)


def decoupled_ppo_loss(
    logprobs: Tensor,
    proximal_logprobs: Tensor,
    behaviour_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_clip: float = 0.2,
    eps_clip_higher: float | None = None,
    c_clip: float | None = None,
    behav_imp_weight_cap: float | None = None,
) -> PolicyLoss:
    """Clip around the proximal policy, weighted by π_prox / π_behaviour (AReaL, arXiv 2505.24298, eq. 5).

    The proximal policy is the one before the batch's first optimiser step. `behav_imp_weight_cap` truncates the
    importance weight, which carries no gradient. All tensors are [T].
    """
    surrogate = ppo_loss(
        logprobs, proximal_logprobs, advantages, mask, eps_clip=eps_clip, eps_clip_higher=eps_clip_higher, c_clip=c_clip
    )
    weight = log_ratio(proximal_logprobs.detach(), behaviour_logprobs, mask).exp()
    if behav_imp_weight_cap is not None:
        weight = truncate(weight, behav_imp_weight_cap)
    return PolicyLoss(surrogate.loss * weight, surrogate.ratio, surrogate.clipped, surrogate.dual_clipped)


def gspo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor | None,
    *,
    eps_clip: float = 0.2,
    eps_clip_higher: float | None = None,
) -> PolicyLoss:
    """PPO's clip on one ratio a sequence, exp of its mean log-ratio (GSPO, arXiv 2507.18071, eq. 5 and 7).

    The paper aggregates by the sequence mean. ε = inf leaves the ratio unclipped. ValueError without cu_seqlens.
    """
    ratio = span_ratio(log_ratio(logprobs, old_logprobs, mask), mask, cu_seqlens)
    return _clipped(ratio, advantages, mask, eps_clip, eps_clip_higher, None)


def sapo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> PolicyLoss:
    """A soft gate in place of the clip: −(4/τ) σ(τ (r−1)) A (SAPO, arXiv 2511.20347, eq. 5 and 6).

    τ is `tau_positive` where A > 0 and `tau_negative` elsewhere. ValueError unless both are > 0.
    """
    if tau_positive <= 0 or tau_negative <= 0:
        raise ValueError(f"temperatures must be > 0, got tau_positive={tau_positive}, tau_negative={tau_negative}")
    ratio = log_ratio(logprobs, old_logprobs, mask).exp()
    tau = torch.where(advantages > 0, tau_positive, tau_negative).to(ratio.dtype)
    loss = -4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantages
    never = torch.zeros_like(mask, dtype=torch.bool)
    return PolicyLoss(_masked(loss, mask), ratio.detach(), never, never)


def critic_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, value_clip: float | None = None
) -> Tensor:
    """½ max((v−R)², (clip(v, v_old ± ε) − R)²) of each token, [T]; ½ (v−R)² without a clip. 0 where the mask is 0."""
    error = (values - returns).square()
    if value_clip is not None:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (near - returns).square())
    return _masked(error / 2, mask)


def _clipped(
    ratio: Tensor, advantages: Tensor, mask: Tensor, eps_low: float, eps_high: float | None, c_clip: float | None
) -> PolicyLoss:
    if c_clip is not None and c_clip <= 1:
        raise ValueError(f"c_clip = {c_clip} must be above 1: it would bound an unchanged policy")
    free = -ratio * advantages
    bounded = -ratio.clamp(1 - eps_low, 1 + (eps_low if eps_high is None else eps_high)) * advantages
    sampled = mask.bool()
    clipped = sampled & (bounded > free)
    loss = torch.maximum(free, bounded)
    dual = torch.zeros_like(clipped)
    if c_clip is not None:
        limit = -c_clip * advantages
        dual = sampled & (advantages < 0) & (loss > limit)
        loss = torch.where(dual, limit, loss)
    return PolicyLoss(_masked(loss, mask), ratio.detach(), clipped, dual)


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), values, torch.zeros_like(values))
