"""Rows laid end to end as torch tensors: what packing cuts, what an engine computes on and what a loss reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from astraflow.core.data import Batch
from astraflow.errors import DataError


@dataclass(frozen=True)
class PackedRows:
    """N rows of T tokens in all. `check()` before they are trained on."""

    lengths: Tensor
    """int64 [N], tokens of each row, each ≥ 2; they sum to T."""
    input_ids: Tensor
    """int64 [T]."""
    mask: Tensor
    """bool [T], the tokens to be predicted: those that the policy sampled or the assistant wrote."""
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    """Further values of each token, [T] by name: what the loss needs."""

    @classmethod
    def of_batch(cls, batch: Batch) -> Self:
        """The tokens of a batch, with the streams `behaviour_logprobs` (float32) and `versions` (int64)."""
        return cls(
            torch.from_numpy(batch.lengths.astype("int64")),
            torch.from_numpy(batch.input_ids.astype("int64")),
            torch.from_numpy(batch.loss_mask.astype("bool")),
            {
                "behaviour_logprobs": torch.from_numpy(batch.logprobs.astype("float32")),
                "versions": torch.from_numpy(batch.versions.astype("int64")),
            },
        ).check()

    def check(self) -> Self:
        """Return self; DataError where lengths disagree or a row starts with a token that nothing predicts."""
        total = int(self.lengths.sum())
        for name, values in {"input_ids": self.input_ids, "mask": self.mask, **self.streams}.items():
            if values.shape != (total,):
                raise DataError(
                    f"packed rows: {name} has shape {tuple(values.shape)}, expected ({total},) from lengths"
                )
        if (self.lengths < 2).any():
            row = int((self.lengths < 2).nonzero()[0, 0])
            raise DataError(f"packed rows: row {row} has {int(self.lengths[row])} tokens, nothing to predict")
        first = self.mask[self.cu_seqlens[:-1]]
        if first.any():
            raise DataError(
                f"packed rows: row {int(first.nonzero()[0, 0])} is trained from its first token, which nothing predicts"
            )
        return self

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """int64 [N+1], where each row starts; the last is T."""
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])

    def token_index(self, rows: Sequence[int] | Tensor) -> Tensor:
        """Where the tokens of some rows are, int64 [tokens of those rows], in the order given."""
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        lengths = self.lengths[chosen]
        starts = lengths.cumsum(0) - lengths
        return torch.arange(int(lengths.sum())) + (self.cu_seqlens[chosen] - starts).repeat_interleave(lengths)

    def select(self, rows: Sequence[int] | Tensor) -> PackedRows:
        """Some rows, in the order given."""
        index = self.token_index(rows)
        return PackedRows(
            self.lengths[torch.as_tensor(rows, dtype=torch.int64)],
            self.input_ids[index],
            self.mask[index],
            {name: values[index] for name, values in self.streams.items()},
        )

    def with_streams(self, **streams: Tensor) -> PackedRows:
        """The same rows with streams added or replaced."""
        return replace(self, streams={**self.streams, **streams})
