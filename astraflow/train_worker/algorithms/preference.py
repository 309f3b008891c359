"""Losses on pairs of answers: reward model, DPO and IPO.

Packed rows come in pairs, chosen then rejected: row 2i is preferred to row 2i+1.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from astraflow.train_worker.algorithms.spans import check_spans, span_mean, span_sum


def reward_model_loss(chosen_P: Tensor, rejected_P: Tensor, margin_P: Tensor | float = 0.0) -> Tensor:
    """−log σ(chosen − rejected − margin) of each pair, [P] (Bradley-Terry; arXiv 2203.02155, eq. 1)."""
    return F.softplus(-(chosen_P - rejected_P - margin_P))


def preference_margin(
    logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, cu_seqlens: Tensor | None, *, per_token: bool = False
) -> Tensor:
    """(log π/ref of the chosen) − (log π/ref of the rejected) of each pair, [P].

    Log-ratios are summed over a row's masked tokens, or averaged with `per_token`. ValueError without cu_seqlens or
    with an odd number of rows.
    """
    table = check_spans(cu_seqlens, len(logprobs))
    if len(table) % 2 == 0:
        raise ValueError(f"rows must come in pairs (chosen, rejected), got {len(table) - 1}")
    reduce = span_mean if per_token else span_sum
    rows = reduce(logprobs - ref_logprobs, mask, table)
    return rows[0::2] - rows[1::2]


def dpo_loss(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    cu_seqlens: Tensor | None,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """−log σ(β margin) of each pair, [P] (DPO, arXiv 2305.18290, eq. 7; smoothed as in its conservative form)."""
    logits = beta * preference_margin(logprobs, ref_logprobs, mask, cu_seqlens)
    return F.softplus(-logits) * (1 - label_smoothing) + F.softplus(logits) * label_smoothing


def ipo_loss(
    logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, cu_seqlens: Tensor | None, *, beta: float = 0.1
) -> Tensor:
    """(margin per token − 1/(2β))² of each pair, [P] (IPO, arXiv 2310.12036, eq. 17, on token means)."""
    margin = preference_margin(logprobs, ref_logprobs, mask, cu_seqlens, per_token=True)
    return (margin - 1 / (2 * beta)).square()
