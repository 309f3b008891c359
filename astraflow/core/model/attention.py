"""Causal attention over packed sequences, for training and prefill.

Sequences lie end to end in the packed arrays; only inside the attention operator they are padded to [N, L]. Sequences
are first sorted into buckets of similar length, so that one long sequence does not pad all the others.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from astraflow.errors import DataError


class PackedAttention:
    """The `attend` of a decoder over packed sequences, each seeing itself only.

    Built once per micro-batch from cu_seqlens int [N + 1], the sequences' borders: 0, …, T. Each bucket holds lengths
    within a factor of two, so padding at most doubles the work of this operator and of no other.
    """

    def __init__(self, cu_seqlens: Tensor) -> None:
        borders = cu_seqlens.to(torch.int64)
        lengths = borders.diff()
        if borders.ndim != 1 or borders.numel() < 2 or borders[0] != 0 or (lengths < 1).any():
            raise DataError(f"cu_seqlens must rise from 0 by at least 1, got {cu_seqlens.tolist()[:8]}…")
        bucket_N = (2 * lengths - 1).to(torch.float64).log2().floor()
        order = bucket_N.argsort(stable=True)
        counts = bucket_N.to(torch.int64).bincount()
        self._buckets = [_Bucket(lengths[rows]) for rows in order.split_with_sizes([n for n in counts.tolist() if n])]
        self._order: Tensor | None = None
        if len(self._buckets) > 1:
            lengths_N = lengths[order]
            shift = borders[:-1][order] - (lengths_N.cumsum(0) - lengths_N)
            tokens = torch.arange(int(borders[-1]), device=borders.device)
            self._order = tokens + shift.repeat_interleave(lengths_N)
            self._inverse = self._order.argsort()

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Return the attention's output [T, H, D]; H is a multiple of K (grouped queries)."""
        if self._order is None:
            return self._buckets[0](q_THD, k_TKD, v_TKD)
        sizes = [bucket.tokens for bucket in self._buckets]
        parts = zip(
            self._buckets,
            *(x.index_select(0, self._order).split_with_sizes(sizes) for x in (q_THD, k_TKD, v_TKD)),
            strict=True,
        )
        return torch.cat([bucket(q, k, v) for bucket, q, k, v in parts]).index_select(0, self._inverse)


class _Bucket:
    """Sequences of similar length, end to end: padded to [n, L], attended, and packed again."""

    def __init__(self, lengths: Tensor) -> None:
        self.rows, self.width, self.tokens = lengths.numel(), int(lengths.max()), int(lengths.sum())
        first = lengths.cumsum(0) - lengths
        shift = torch.arange(self.rows, device=lengths.device) * self.width - first
        self._place = torch.arange(self.tokens, device=lengths.device) + shift.repeat_interleave(lengths)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(
            self._pad(q), self._pad(k), self._pad(v), is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.transpose(1, 2).reshape(self.rows * self.width, *q.shape[1:]).index_select(0, self._place)

    def _pad(self, x: Tensor) -> Tensor:
        # zeros and index_copy: its backward is a gather, four times cheaper than a scatter-add
        heads, dim = x.shape[1:]
        padded = x.new_zeros(self.rows * self.width, heads, dim).index_copy(0, self._place, x)
        return padded.view(self.rows, self.width, heads, dim).transpose(1, 2)


def packed_attention(cu_seqlens: Tensor) -> PackedAttention:
    """Return the `attend` for packed sequences with these borders (int [N + 1], from 0 to T)."""
    return PackedAttention(cu_seqlens)


def packed_positions(cu_seqlens: Tensor) -> Tensor:
    """Return each packed token's position in its own sequence, int64 [T]."""
    borders = cu_seqlens.to(torch.int64)
    return torch.arange(int(borders[-1]), device=borders.device) - borders[:-1].repeat_interleave(borders.diff())
