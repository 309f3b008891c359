"""Keys and values of running sequences, and attention over them.

One row a sequence; positions grow by doubling, so that memory follows the lengths that occur and short sequences
stay close together in memory.
Axes: S rows, R running rows, K key/value heads, G queries per key, W positions attended, D head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from astraflow.core.model import ModelConfig, packed_attention, packed_positions

FIRST_POSITIONS = 64
"""Positions allocated at first."""


class KVCache:
    """keys and values [layers, S, K, positions, D]."""

    def __init__(self, config: ModelConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        # zeros, because masked positions are still multiplied: by weight 0, which only finite values survive
        shape = (2, config.num_hidden_layers, rows, config.num_key_value_heads, FIRST_POSITIONS, config.head_dim)
        self._store = torch.zeros(shape, dtype=dtype, device=device)

    def grow(self, positions: int) -> None:
        """Make room for so many positions."""
        have = self._store.shape[4]
        if positions > have:
            shape = list(self._store.shape)
            shape[4] = max(positions, 2 * have)
            store = self._store.new_zeros(shape)
            store[:, :, :, :, :have] = self._store
            self._store = store

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [S, K, positions, D] of one layer, as views."""
        return self._store[0, index], self._store[1, index]

    def copy(self, pairs: list[tuple[int, int]], length: int) -> None:
        """Copy the first `length` positions for each (source row, row); all are read before any is written."""
        if pairs and length:
            sources, targets = map(list, zip(*pairs, strict=True))
            self._store[:, :, targets, :, :length] = self._store[:, :, sources, :, :length]

    def clear(self, rows: list[int]) -> None:
        """Zero rows: after a failure they may hold values that are not finite."""
        self._store[:, :, rows] = 0.0


class DecodeAttention:
    """The decoder's `attend` for one token in each of the first R rows, at its own position."""

    def __init__(self, cache: KVCache, positions_R: Tensor, width: int) -> None:
        self._cache = cache
        self._rows = torch.arange(len(positions_R), device=positions_R.device)
        self._positions = positions_R
        self._width = width
        hidden = torch.arange(width, device=positions_R.device) > positions_R.unsqueeze(1)
        heads = cache.layer(0)[0].shape[1]
        bias = torch.zeros(hidden.shape, dtype=cache.layer(0)[0].dtype, device=positions_R.device)
        self._bias = bias.masked_fill_(hidden, float("-inf")).repeat_interleave(heads, 0).unsqueeze(1)

    def __call__(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        """Store the token's key and value, then attend over everything up to it. Returns [R, H, D]."""
        rows, heads, dim = q_RHD.shape
        kv_heads = k_RKD.shape[1]
        keys, values = self._cache.layer(layer)
        keys[self._rows, :, self._positions] = k_RKD
        values[self._rows, :, self._positions] = v_RKD
        # the queries that share a key are one small matrix: a batched product serves all heads, no key is repeated
        q = q_RHD.reshape(rows * kv_heads, heads // kv_heads, dim)
        keys = keys[:rows].flatten(0, 1)[:, : self._width]
        values = values[:rows].flatten(0, 1)[:, : self._width]
        scores = torch.baddbmm(self._bias, q, keys.transpose(1, 2), alpha=dim**-0.5)
        weights = scores.softmax(-1)
        return torch.bmm(weights, values).view(rows, heads, dim)


class PrefillAttention:
    """The decoder's `attend` for whole prompts, packed: attends among them and stores their keys and values in rows."""

    def __init__(self, cache: KVCache, cu_seqlens: Tensor, rows_N: Tensor) -> None:
        self._cache = cache
        self._attend = packed_attention(cu_seqlens)
        self.positions = packed_positions(cu_seqlens)
        self._rows = rows_N.repeat_interleave(cu_seqlens.diff())

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Return [T, H, D]."""
        keys, values = self._cache.layer(layer)
        keys[self._rows, :, self.positions] = k_TKD
        values[self._rows, :, self.positions] = v_TKD
        return self._attend(layer, q_THD, k_TKD, v_TKD)
