"""Keys and values of running sequences, and attention over them.

One row a sequence; rows and positions grow by doubling, so that memory follows what runs and short sequences stay close
together in memory. Invariant: rows × positions never exceed the limit; the scheduler admits no more than fits in it.
Axes: S rows, R running rows, K key/value heads, G queries per key, W positions attended, D head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from astraflow.core.model import ModelConfig, packed_attention, packed_positions

FIRST_ROWS = 8
FIRST_POSITIONS = 64
"""Of each row; both are allocated at first."""


def bytes_per_position(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one token."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.itemsize


class KVCache:
    """keys and values [layers, S, K, positions, D]."""

    def __init__(
        self, config: ModelConfig, rows: int, limit: int | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        """At most `rows` rows, and `limit` positions of all of them together."""
        self.heads = config.num_key_value_heads
        self._most_rows = rows
        self._limit = limit if limit is not None else rows * config.max_position_embeddings
        positions = min(FIRST_POSITIONS, self._limit)
        first = min(rows, FIRST_ROWS, self._limit // positions)
        # zeros, because masked positions are still multiplied: by weight 0, which only finite values survive
        shape = (2, config.num_hidden_layers, first, self.heads, positions, config.head_dim)
        self._hold(torch.zeros(shape, dtype=dtype, device=device))

    def _hold(self, store: Tensor) -> None:
        self._store = store
        self.shape = (store.shape[2], store.shape[4])
        """Rows, and positions of each."""
        flat = store.flatten(2, 3)
        self.layers = list(zip(flat[0].unbind(), flat[1].unbind(), strict=True))
        """Keys and values of each layer [S·K, positions, D], as views."""

    def reserve(self, rows: int, positions: int, reach: int) -> None:
        """Make room for so many rows and positions; what runs may grow to `reach`, and rows × reach are in the limit.

        Where the limit leaves no room beside what rows or positions there are, those are given up: `shape` says so.
        """
        have_rows, have_positions = self.shape
        if rows <= have_rows and positions <= have_positions:
            return
        wide = have_rows if rows <= have_rows else min(self._most_rows, max(rows, 2 * have_rows))
        # twice as long each time, but hardly beyond what may be needed: no more than rounding spares the next growth
        enough = -(-reach // FIRST_POSITIONS) * FIRST_POSITIONS
        long = have_positions if positions <= have_positions else max(positions, min(2 * have_positions, enough))
        if wide * long > self._limit:
            long = max(positions, min(long, reach))
            wide = min(wide, self._limit // long)
        shape = list(self._store.shape)
        shape[2], shape[4] = wide, long
        store = self._store.new_zeros(shape)
        kept = (slice(None), slice(None), slice(min(wide, have_rows)), slice(None), slice(min(long, have_positions)))
        store[kept] = self._store[kept]
        self._hold(store)

    def copy(self, pairs: list[tuple[int, int]], length: int) -> None:
        """Copy the first `length` positions for each (source row, row); all are read before any is written."""
        if pairs and length:
            sources, targets = map(list, zip(*pairs, strict=True))
            self._store[:, :, targets, :, :length] = self._store[:, :, sources, :, :length]

    def clear(self, rows: list[int]) -> None:
        """Zero rows: after a failure they may hold values that are not finite."""
        self._store[:, :, [row for row in rows if row < self.shape[0]]] = 0.0


class DecodeAttention:
    """The decoder's `attend` for one token in each of the first R rows, at its own position below `width`."""

    def __init__(self, cache: KVCache, positions_R: Tensor, width: int) -> None:
        self._layers = cache.layers
        self._heads = len(positions_R) * cache.heads
        self._width = width
        self._positions = positions_R.repeat_interleave(cache.heads)
        self._index = torch.arange(self._heads, device=positions_R.device)
        ahead = torch.arange(width, device=positions_R.device) > self._positions.unsqueeze(1)
        bias = torch.zeros(ahead.shape, dtype=cache.layers[0][0].dtype, device=positions_R.device)
        self._bias = bias.masked_fill_(ahead, float("-inf")).unsqueeze(1)

    def __call__(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        """Store the token's key and value, then attend over everything up to it. Returns [R, H, D]."""
        keys, values = self._layers[layer]
        keys[self._index, self._positions] = k_RKD.flatten(0, 1)
        values[self._index, self._positions] = v_RKD.flatten(0, 1)
        # the queries that share a key are one small matrix: a batched product serves all heads, no key is repeated
        rows, heads, dim = q_RHD.shape
        q = q_RHD.reshape(self._heads, rows * heads // self._heads, dim)
        keys = keys[: self._heads, : self._width]
        scores = torch.baddbmm(self._bias, q, keys.transpose(1, 2), alpha=dim**-0.5)
        return torch.bmm(scores.softmax(-1), values[: self._heads, : self._width]).view(rows, heads, dim)


class PrefillAttention:
    """The decoder's `attend` for whole prompts, packed: attends among them and stores their keys and values in rows."""

    def __init__(self, cache: KVCache, cu_seqlens: Tensor, rows_N: Tensor) -> None:
        self._layers = cache.layers
        self._attend = packed_attention(cu_seqlens)
        self.positions = packed_positions(cu_seqlens)
        heads = torch.arange(cache.heads, device=cu_seqlens.device)
        self._index = (rows_N.repeat_interleave(cu_seqlens.diff()) * cache.heads).unsqueeze(1) + heads

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Return [T, H, D]."""
        keys, values = self._layers[layer]
        keys[self._index, self.positions.unsqueeze(1)] = k_TKD
        values[self._index, self.positions.unsqueeze(1)] = v_TKD
        return self._attend(layer, q_THD, k_TKD, v_TKD)
