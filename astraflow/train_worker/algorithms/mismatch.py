"""How far the policy that is trained is from the one that sampled: importance ratios, their truncation and rejection.

Log-ratios are per token, new minus old; what is not sampled has log-ratio 0 and ratio 1. A rejected token leaves the
numerator of the loss and keeps its weight in the denominator (LAW 16).
"""

from __future__ import annotations

import torch
from torch import Tensor

from astraflow.train_worker.algorithms.spans import check_spans, span_mean, span_of_token

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to ± this before exp: e^20 is far past every clip and keeps float32 products finite."""


def log_ratio(logprobs_T: Tensor, old_logprobs_T: Tensor, mask_T: Tensor) -> Tensor:
    """new − old on sampled tokens, clamped to ±20; 0 elsewhere, and where both are −inf (impossible under both)."""
    zero = torch.zeros_like(logprobs_T)
    same = ~mask_T.bool() | (torch.isneginf(logprobs_T) & torch.isneginf(old_logprobs_T))
    # replaced before the difference, so that neither value nor gradient meets inf − inf
    difference = torch.where(same, zero, logprobs_T) - torch.where(same, zero, old_logprobs_T)
    return difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def token_ratio(logprobs_T: Tensor, old_logprobs_T: Tensor, mask_T: Tensor) -> Tensor:
    """π_new / π_old of each token; 1 where nothing was sampled."""
    return log_ratio(logprobs_T, old_logprobs_T, mask_T).exp()


def span_ratio(log_ratio_T: Tensor, mask_T: Tensor, cu_spans: Tensor | None) -> Tensor:
    """exp of the mean log-ratio of each token's span, [T]: the geometric mean of its token ratios.

    With a table of rows it is GSPO's sequence-level ratio (arXiv 2507.18071, eq. 7); with `version_spans` or a table of
    turns, one ratio a segment. ValueError without a table.
    """
    table = check_spans(cu_spans, len(log_ratio_T))
    return span_mean(log_ratio_T, mask_T, table).exp()[span_of_token(table)]


def version_spans(versions_T: Tensor, mask_T: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Span table that cuts rows wherever a sampled token's version differs from that of the sampled token before it.

    versions_T: int [T], ignored where mask_T is 0; tokens in between belong to the segment before them.
    """
    table = check_spans(cu_seqlens, len(versions_T))
    sampled = mask_T.bool().nonzero().squeeze(1)
    changed = versions_T[sampled].diff() != 0
    inside = span_of_token(table)[sampled].diff() == 0
    cuts = sampled[1:][changed & inside]
    return torch.cat([table, cuts]).sort().values if len(cuts) else table


def truncate(ratio_T: Tensor, upper: float, lower: float = 0.0) -> Tensor:
    """Truncated importance sampling: ratios clamped into [lower, upper]. ValueError unless lower < 1 < upper."""
    _check_bounds(upper, lower)
    return ratio_T.clamp(lower, upper)


def reject(ratio_T: Tensor, mask_T: Tensor, upper: float, lower: float = 0.0) -> Tensor:
    """Rejection sampling: the mask, bool [T], without tokens whose ratio is outside [lower, upper].

    Give span ratios to reject whole sequences or segments. ValueError unless lower < 1 < upper.
    """
    _check_bounds(upper, lower)
    return mask_T.bool() & (ratio_T >= lower) & (ratio_T <= upper)


def _check_bounds(upper: float, lower: float) -> None:
    if not upper > 1:
        raise ValueError(f"upper = {upper} must be above 1: a ratio of 1 is an unchanged policy")
    if not 0 <= lower < 1:
        raise ValueError(f"lower = {lower} must be in [0, 1)")
