"""Invariant 6, denominators: one weight tensor defines numerator and denominator of every aggregate.

The weights of a minibatch are made once, over all of its rows, before it is cut into micro-batches or shared among
ranks. Whoever holds some of the rows adds up `weights × values` of those rows; the parts sum to the aggregate. So the
gradient does not depend on accumulation, micro-batching, packing or data-parallel size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from astraflow.train_worker.algorithms.spans import check_spans, span_count, span_of_token

LossAggregation = Literal["token", "sequence", "prompt", "constant"]


def token_weights(
    mask_T: Tensor,
    cu_seqlens: Tensor,
    how: LossAggregation = "token",
    group_id_N: Tensor | None = None,
    constant: float | None = None,
) -> Tensor:
    """Return float32 [T], the weight of each token in a minibatch's loss; 0 where the mask is 0.

    token: the mean over all masked tokens (DAPO, arXiv 2503.14476, eq. 8). sequence: the mean over rows of their token
    means (GRPO, arXiv 2402.03300, eq. 3). prompt: the mean over groups of their token means. constant: the sum over
    rows × `constant` tokens (Dr. GRPO, arXiv 2503.20783). Rows and groups without a masked token do not count, except
    that `constant` counts every row. The first three sum to 1, or to 0 where everything is masked.
    """
    table = check_spans(cu_seqlens, len(mask_T))
    kept = mask_T.to(torch.float64)
    if how == "token":
        weights = kept / kept.sum().clamp(min=1)
    elif how == "sequence":
        weights = _mean_of_means(kept, span_of_token(table), len(table) - 1)
    elif how == "prompt":
        if group_id_N is None:
            raise ValueError("the prompt mean needs group_id_N")
        groups, group_of_row = torch.unique(group_id_N, return_inverse=True)
        weights = _mean_of_means(kept, group_of_row[span_of_token(table)], len(groups))
    elif how == "constant":
        if constant is None or constant <= 0:
            raise ValueError("the constant aggregate needs constant > 0")
        weights = kept / (max(len(table) - 1, 1) * constant)
    else:
        raise ValueError(f"unknown aggregate '{how}'; known: constant, prompt, sequence, token")
    return weights.to(torch.float32)


def aggregate(values_T: Tensor, weights_T: Tensor) -> Tensor:
    """Return Σ weights × values, a scalar; what has weight 0 is not looked at, so it may hold anything."""
    return (torch.where(weights_T != 0, values_T, torch.zeros_like(values_T)) * weights_T).sum()


def masked_mean(values_T: Tensor, mask_T: Tensor) -> Tensor:
    """Mean of the masked values, a scalar; exactly 0 where nothing is."""
    mask = mask_T.bool()
    return torch.where(mask, values_T, torch.zeros_like(values_T)).sum() / mask.sum().clamp(min=1)


def sequence_mean(values_T: Tensor, mask_T: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Mean over rows of their masked token means, a scalar."""
    return aggregate(values_T, token_weights(mask_T, cu_seqlens, "sequence"))


def _mean_of_means(kept: Tensor, part_of_token: Tensor, parts: int) -> Tensor:
    counts = kept.new_zeros(parts).index_add(0, part_of_token, kept)
    return kept / counts.clamp(min=1)[part_of_token] / (counts > 0).sum().clamp(min=1)


def rows_with_tokens(mask_T: Tensor, cu_seqlens: Tensor) -> int:
    """How many rows have a masked token."""
    return int((span_count(mask_T, cu_seqlens) > 0).sum())
