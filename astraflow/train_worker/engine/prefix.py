"""Rows that begin with the same context share its computation.

The samples of a group start with one prompt; a causal decoder gives its tokens the same hidden states in every row. So
they are computed once, and each row's own tokens attend to them. The gradient is the sum that it would have been (LAW
12). With eight samples and answers as long as the prompt this is nearly half of all tokens.

Axes: U distinct tokens, T packed tokens, G prefixes, N rows, H query heads, K key/value heads, D head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from astraflow.core.model import Attend, packed_attention, packed_positions
from astraflow.errors import DataError
from astraflow.train_worker.algorithms.spans import span_of_token
from astraflow.train_worker.packed_rows import PackedRows

WORTH = 0.1
"""Share of a row that its context has to be for it to be shared: sharing has costs of its own. It is asked of each row
alone, so that a row counts and is computed alike whatever other rows a forward pass has."""


@dataclass(frozen=True)
class Layout:
    """What a decoder is given for some rows, and where each of their tokens is in it."""

    input_ids: Tensor
    """int64 [U]."""
    positions: Tensor
    """int64 [U]."""
    attend: Attend
    place: Tensor
    """int64 [T]: packed token → its place among the U."""


def prefix_lengths(rows: PackedRows) -> Tensor:
    """int64 [N]: tokens before the first target of each row; always less than the row."""
    index = torch.where(rows.mask, torch.arange(len(rows.mask)), len(rows.mask))
    first = torch.full_like(rows.lengths, len(rows.mask)).scatter_reduce(
        0, span_of_token(rows.cu_seqlens), index, reduce="amin"
    )
    return torch.minimum(first - rows.cu_seqlens[:-1], rows.lengths - 1)


def same_prefix(rows: PackedRows) -> list[list[int]]:
    """Row numbers by context: rows of one list begin with exactly the same tokens before their first target.

    A row whose context is hardly worth sharing is alone.
    """
    ids = rows.input_ids.numpy()
    found: dict[tuple[bytes, int], list[int]] = {}
    starts, prefixes, lengths = rows.cu_seqlens[:-1].tolist(), prefix_lengths(rows).tolist(), rows.lengths.tolist()
    for row, (start, prefix, length) in enumerate(zip(starts, prefixes, lengths, strict=True)):
        own = -1 if prefix >= WORTH * length else row
        found.setdefault((ids[start : start + prefix].tobytes(), own), []).append(row)
    return list(found.values())


def units(rows: PackedRows, max_tokens: int) -> tuple[list[list[int]], list[int]]:
    """Cut rows into units that stay together in a micro-batch, and the distinct tokens of each, at most `max_tokens`.

    DataError where a single row is longer.
    """
    prefixes, lengths = prefix_lengths(rows).tolist(), rows.lengths.tolist()
    parts: list[list[int]] = []
    sizes: list[int] = []
    for together in same_prefix(rows):
        room = 0
        for row in together:
            if lengths[row] > max_tokens:
                raise DataError(
                    f"row {row} has {lengths[row]} tokens; a micro-batch holds {max_tokens} (mb_spec.max_tokens_per_mb)"
                )
            own = lengths[row] - prefixes[row]
            if own > room:
                parts.append([])
                sizes.append(prefixes[row])
                room = max_tokens - prefixes[row]
            parts[-1].append(row)
            sizes[-1] += own
            room -= own
    return parts, sizes


def layout_of(rows: PackedRows) -> Layout:
    """Return how to compute `rows`: with shared prefixes where there are any."""
    shared = same_prefix(rows)
    prefix_N = prefix_lengths(rows)
    first_row_G = torch.tensor([items[0] for items in shared])
    if len(shared) == len(rows.lengths):
        everywhere = torch.arange(len(rows.input_ids))
        return Layout(rows.input_ids, packed_positions(rows.cu_seqlens), packed_attention(rows.cu_seqlens), everywhere)
    prefix_of_row = torch.empty_like(rows.lengths)
    for number, items in enumerate(shared):
        prefix_of_row[items] = number
    # rows of similar length are neighbours, so that their attention is one slice
    order = _bucket_of(rows.lengths).argsort(stable=True)
    return _shared_layout(rows, prefix_N, first_row_G, prefix_of_row, order)


def _shared_layout(
    rows: PackedRows, prefix_N: Tensor, first_row_G: Tensor, prefix_of_row: Tensor, order: Tensor
) -> Layout:
    length_G = prefix_N[first_row_G]
    start_G = length_G.cumsum(0) - length_G
    own_N = rows.lengths - prefix_N
    own_start_N = torch.empty_like(own_N)
    own_start_N[order] = own_N[order].cumsum(0) - own_N[order] + length_G.sum()
    row_T = span_of_token(rows.cu_seqlens)
    position_T = packed_positions(rows.cu_seqlens)
    in_prefix_T = position_T < prefix_N[row_T]
    place_T = torch.where(
        in_prefix_T,
        start_G[prefix_of_row[row_T]] + position_T,
        own_start_N[row_T] + position_T - prefix_N[row_T],
    )
    distinct = int(length_G.sum() + own_N.sum())
    attend = PrefixAttention(length_G, own_N[order], prefix_of_row[order], rows.lengths[order])
    ids = rows.input_ids.new_zeros(distinct).scatter(0, place_T, rows.input_ids)
    positions = position_T.new_zeros(distinct).scatter(0, place_T, position_T)
    return Layout(ids, positions, attend, place_T)


class PrefixAttention:
    """The `attend` of a decoder over G prefixes, then the N rows' own tokens, each row after one of the prefixes.

    length_G int64 [G] ≥ 1, own_N int64 [N] ≥ 1, prefix_of_row int64 [N]; rows come in buckets of similar whole length.
    """

    def __init__(self, length_G: Tensor, own_N: Tensor, prefix_of_row: Tensor, length_N: Tensor) -> None:
        borders = torch.cat([length_G.new_zeros(1), length_G.cumsum(0)])
        self._prefixes = packed_attention(borders)
        self._prefix_tokens = int(borders[-1])
        _, counts = torch.unique_consecutive(_bucket_of(length_N), return_counts=True)
        self._buckets = [
            _Bucket(borders, own, prefixes)
            for own, prefixes in zip(
                torch.split(own_N, counts.tolist()), torch.split(prefix_of_row, counts.tolist()), strict=True
            )
        ]
        self._sizes = [self._prefix_tokens, *(bucket.tokens for bucket in self._buckets)]

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Return [U, H, D]."""
        (q, *own_q), (k, *own_k), (v, *own_v) = (x.split_with_sizes(self._sizes) for x in (q_THD, k_TKD, v_TKD))
        parts = [self._prefixes(layer, q, k, v)]
        for bucket, q_n, k_n, v_n in zip(self._buckets, own_q, own_k, own_v, strict=True):
            parts.append(bucket(q_n, k_n, v_n, k, v))
        return torch.cat(parts)


class _Bucket:
    """Rows of similar length. Keys are laid out as [prefix, right-aligned | own tokens, left-aligned]."""

    def __init__(self, borders: Tensor, own_N: Tensor, prefix_of_row: Tensor) -> None:
        self.tokens = int(own_N.sum())
        used, self._prefix_of_row = torch.unique(prefix_of_row, return_inverse=True)
        length_g = borders.diff()[used]
        self._rows, self._prefixes = len(own_N), len(used)
        self._own_width, self._width = int(own_N.max()), int(length_g.max())
        self._own_place = _places(own_N, self._own_width)
        before = length_g.cumsum(0) - length_g
        ordinal = torch.arange(int(length_g.sum())) - before.repeat_interleave(length_g)
        self._tokens = ordinal + borders[:-1][used].repeat_interleave(length_g)
        self._place = _places(length_g, self._width) + (self._width - length_g).repeat_interleave(length_g)
        # a query sees its row's whole prefix and its own tokens up to itself
        sees_prefix = torch.arange(self._width) >= (self._width - length_g[self._prefix_of_row])[:, None]
        own = torch.arange(self._own_width)
        sees_own = own[None, :] <= own[:, None]
        if bool(sees_prefix.all()):
            sees_prefix = sees_prefix[:1]
        self._mask = torch.cat(
            [
                sees_prefix[:, None, :].expand(-1, self._own_width, -1),
                sees_own[None].expand(len(sees_prefix), -1, -1),
            ],
            dim=2,
        )[:, None]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(
            self._own(q).transpose(1, 2),
            self._keys(k, prefix_k),
            self._keys(v, prefix_v),
            attn_mask=self._mask,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        flat = out.transpose(1, 2).reshape(self._rows * self._own_width, *q.shape[1:])
        return flat.index_select(0, self._own_place)

    def _own(self, x: Tensor) -> Tensor:
        padded = x.new_zeros(self._rows * self._own_width, *x.shape[1:]).index_copy(0, self._own_place, x)
        return padded.view(self._rows, self._own_width, *x.shape[1:])

    def _keys(self, own: Tensor, prefixes: Tensor) -> Tensor:
        padded = own.new_zeros(self._prefixes * self._width, *own.shape[1:])
        padded = padded.index_copy(0, self._place, prefixes.index_select(0, self._tokens))
        blocks = padded.view(self._prefixes, self._width, *own.shape[1:]).index_select(0, self._prefix_of_row)
        return torch.cat([blocks, self._own(own)], dim=1).transpose(1, 2)


def _places(lengths: Tensor, width: int) -> Tensor:
    """Where each packed token goes when every sequence is padded at its end to `width`."""
    first = lengths.cumsum(0) - lengths
    shift = torch.arange(len(lengths)) * width - first
    return torch.arange(int(lengths.sum())) + shift.repeat_interleave(lengths)


def _bucket_of(lengths: Tensor) -> Tensor:
    """Power of two that a length belongs to: padding at most doubles it."""
    return (2 * lengths - 1).to(torch.float64).log2().floor()
