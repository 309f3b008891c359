"""Sums and means over the spans of a packed tensor: rows, turns or segments laid end to end.

A span table `cu_spans` is int64 [S+1] with 0 first and T last; span s covers tokens cu_spans[s] … cu_spans[s+1] − 1. A
table of rows is what attention calls `cu_seqlens`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def span_of_token(cu_spans: Tensor) -> Tensor:
    """int64 [T]: the span that each token belongs to."""
    lengths = cu_spans.diff()
    return torch.repeat_interleave(torch.arange(len(lengths), device=cu_spans.device), lengths)


def check_spans(cu_spans: Tensor | None, total: int) -> Tensor:
    """Return the table, or raise ValueError where it is missing or does not cover `total` tokens in order."""
    if cu_spans is None:
        raise ValueError("packed tensors need cu_seqlens to tell one sequence from the next")
    table = cu_spans.to(torch.int64)
    if table.ndim != 1 or len(table) < 1 or table[0] != 0 or table[-1] != total or (table.diff() < 0).any():
        raise ValueError(f"cu_seqlens must rise from 0 to the {total} tokens of the packed tensor")
    return table


def span_sum(values_T: Tensor, mask_T: Tensor, cu_spans: Tensor) -> Tensor:
    """Sum of the masked values of each span, [S]."""
    kept = torch.where(mask_T.bool(), values_T, torch.zeros_like(values_T))
    return kept.new_zeros(len(cu_spans) - 1).index_add(0, span_of_token(cu_spans), kept)


def span_count(mask_T: Tensor, cu_spans: Tensor) -> Tensor:
    """Masked tokens of each span, int64 [S]."""
    counts = torch.zeros(len(cu_spans) - 1, dtype=torch.int64, device=mask_T.device)
    return counts.index_add(0, span_of_token(cu_spans), mask_T.to(torch.int64))


def span_mean(values_T: Tensor, mask_T: Tensor, cu_spans: Tensor) -> Tensor:
    """Mean of the masked values of each span, [S]; 0 for a span without any."""
    return span_sum(values_T, mask_T, cu_spans) / span_count(mask_T, cu_spans).clamp(min=1).to(values_T.dtype)


def longest_run(mask_T: Tensor, cu_spans: Tensor) -> Tensor:
    """Most masked tokens in a row of each span, int64 [S]: its longest generation, where others' text lies between."""
    mask, span = mask_T.bool(), span_of_token(cu_spans)
    before = torch.cat([mask.new_zeros(1), mask[:-1]]) & (span == torch.cat([span[:1], span[:-1]]))
    starts = mask & ~before
    lengths = torch.bincount((starts.cumsum(0) - 1)[mask], minlength=int(starts.sum()))
    longest = torch.zeros(len(cu_spans) - 1, dtype=torch.int64, device=mask_T.device)
    return longest.scatter_reduce(0, span[starts], lengths, reduce="amax")


def last_masked(mask_T: Tensor, cu_spans: Tensor) -> Tensor:
    """int64 [S]: the index in [T] of each span's last masked token; −1 for a span without any."""
    index = torch.where(mask_T.bool(), torch.arange(len(mask_T), device=mask_T.device), -1)
    last = torch.full((len(cu_spans) - 1,), -1, dtype=torch.int64, device=mask_T.device)
    return last.scatter_reduce(0, span_of_token(cu_spans), index, reduce="amax")
