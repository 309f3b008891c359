"""M2PO: bound the second moment of the log-ratio between the new and the behaviour policy (arXiv 2510.01161).

Only violating tokens count: those whose gradient would push the ratio further from 1, (A > 0 and r > 1) or (A < 0 and
r < 1). The ratio is taken before the first minibatch over the whole training batch, so the result depends on neither
minibatches nor micro-batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_EPS_LOW = 0.95
MAX_EPS_HIGH = 20.0
"""Widest bounds: what is used where nothing has to be cut."""


@dataclass(frozen=True)
class M2Bounds:
    """Clip bounds of the ratio π_new / π_behaviour and the moment that they were chosen from."""

    eps_low: float
    eps_high: float
    moment: float
    """Mean squared log-ratio of the violating tokens, before any cut; 0 without any."""


def m2po_bounds(log_ratio_T: Tensor, advantages_T: Tensor, mask_T: Tensor, threshold: float) -> M2Bounds:
    """Return the clip bounds under which the moment of what is left is below `threshold`.

    With m = (log r)² sorted descending, the bound t is √m of the first element for which the mean of itself and all
    smaller ones is < threshold (the smallest where there is none); ε_low = 1 − e^−t, ε_high = e^t − 1.
    """
    moments = _violating_moments(log_ratio_T, advantages_T, mask_T)
    mean = float(moments.mean()) if len(moments) else 0.0
    if mean <= threshold:
        return M2Bounds(MAX_EPS_LOW, MAX_EPS_HIGH, mean)
    fits = (_suffix_means(moments) < threshold).nonzero()
    t = math.sqrt(float(moments[fits[0, 0]] if len(fits) else moments[-1]))
    return M2Bounds(min(-math.expm1(-t), MAX_EPS_LOW), min(math.expm1(t), MAX_EPS_HIGH), mean)


def m2po_mask(log_ratio_T: Tensor, advantages_T: Tensor, mask_T: Tensor, threshold: float) -> Tensor:
    """The paper's form: the mask, bool [T], without the largest violating m until the mean of the rest is ≤ threshold.

    A removed token gets loss 0 and keeps its weight in the denominator (LAW 16).
    """
    index = _violating(log_ratio_T, advantages_T, mask_T).nonzero().squeeze(1)
    moments, order = log_ratio_T.detach()[index].double().square().sort(descending=True, stable=True)
    fits = (_suffix_means(moments) <= threshold).nonzero()
    removed = int(fits[0, 0]) if len(fits) else len(moments)
    kept = mask_T.bool().clone()
    kept[index[order[:removed]]] = False
    return kept


def _violating(log_ratio_T: Tensor, advantages_T: Tensor, mask_T: Tensor) -> Tensor:
    outward = ((advantages_T > 0) & (log_ratio_T > 0)) | ((advantages_T < 0) & (log_ratio_T < 0))
    return mask_T.bool() & outward


def _violating_moments(log_ratio_T: Tensor, advantages_T: Tensor, mask_T: Tensor) -> Tensor:
    violating = _violating(log_ratio_T, advantages_T, mask_T)
    return log_ratio_T.detach()[violating].double().square().sort(descending=True).values


def _suffix_means(descending: Tensor) -> Tensor:
    """Mean of each element and all after it."""
    sums = descending.flip(0).cumsum(0).flip(0)
    return sums / torch.arange(len(descending), 0, -1, device=descending.device)
