"""One process, one device: packed micro-batches through the shared decoder, exact denominators.

Every value that a loss divides by is in `weights_T`, made over the whole minibatch before it is cut (invariant 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from astraflow.core.model import Decoder, named_weights, return_free_memory, tied_aliases
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.errors import DataError, WeightError
from astraflow.train_worker.algorithms.aggregation import aggregate
from astraflow.train_worker.checkpoint import save_checkpoint
from astraflow.train_worker.config import OptimizerConfig
from astraflow.train_worker.engine.base import LossFunction, RowLimits, StepResult, TokenOutputs
from astraflow.train_worker.engine.logprobs import token_logprobs
from astraflow.train_worker.engine.prefix import layout_of, units
from astraflow.train_worker.optim import Optimizer
from astraflow.train_worker.packed_rows import PackedRows
from astraflow.train_worker.packing import micro_batches


class NativeEngine:
    """The TrainEngine of a single process."""

    def __init__(
        self,
        decoder: Decoder,
        optimizer: OptimizerConfig,
        total_steps: int,
        *,
        temperature: float = 1.0,
        max_tokens_per_mb: int = 16384,
        device: str = "cpu",
    ) -> None:
        """`total_steps` are optimiser steps, for the schedule; `temperature` divides the logits of every output."""
        self._decoder = decoder.to(device)
        self._optimizer = Optimizer(decoder.parameters(), optimizer, total_steps)
        self._temperature = temperature
        self._max_tokens = max_tokens_per_mb
        self._device = device

    @property
    def limits(self) -> RowLimits:
        config = self._decoder.config
        return RowLimits(config.vocab_size, min(config.max_position_embeddings, self._max_tokens))

    def forward(self, rows: PackedRows) -> TokenOutputs:
        self._check(rows)
        collected = _Collected(rows)
        with torch.no_grad():
            for items in self._cut(rows):
                collected.put(items, self.score(rows.select(items)))
        return collected.outputs

    def train_step(self, rows: PackedRows, weights_T: Tensor, loss: LossFunction) -> StepResult:
        self._check(rows)
        self._optimizer.zero_grad()
        collected = _Collected(rows)
        total = 0.0
        for items in self._cut(rows):
            part = rows.select(items)
            outputs = self.score(part)
            value = aggregate(loss(part, outputs), weights_T[rows.token_index(items)])
            torch.autograd.backward(value)
            total += value.item()
            collected.put(items, outputs)
            return_free_memory(self._decoder)  # the next one's activations have other sizes
        update = self._optimizer.step()
        return StepResult(total, update.grad_norm, update.learning_rate, collected.outputs, update.skipped)

    def release(self) -> None:
        self._optimizer.zero_grad()
        return_free_memory(self._decoder)

    def score(self, rows: PackedRows) -> TokenOutputs:
        """One pass over all of `rows`, with gradient."""
        layout = layout_of(rows)
        hidden_UC = self._decoder(layout.input_ids.to(self._device), layout.positions.to(self._device), layout.attend)
        targets = rows.mask.nonzero().squeeze(1)
        # the token before predicts; a row never starts with a target, so it is of the same row
        logprobs_M, entropy_M = token_logprobs(
            hidden_UC.index_select(0, layout.place[targets - 1].to(self._device)),
            rows.input_ids[targets].to(self._device),
            self._decoder.logits,
            self._decoder.config.vocab_size,
            self._temperature,
        )
        empty = torch.zeros(len(rows.mask))
        return TokenOutputs(
            empty.index_copy(0, targets, logprobs_M.cpu()), empty.index_copy(0, targets, entropy_M.cpu())
        )

    def named_weights(self) -> list[tuple[str, Tensor]]:
        return named_weights(self._decoder)

    def aliases(self) -> dict[str, tuple[str, ...]]:
        return tied_aliases(self._decoder.config)

    def save(self, directory: Path, tokenizer: Tokenizer) -> None:
        save_checkpoint(directory, self._decoder, tokenizer)

    def state(self) -> dict[str, Tensor]:
        rng = {"rng.cpu": torch.get_rng_state()}
        if self._device != "cpu":
            rng["rng.device"] = torch.cuda.get_rng_state(self._device)
        return {
            **{f"model.{name}": weight for name, weight in named_weights(self._decoder)},
            **{f"optimizer.{name}": value for name, value in self._optimizer.state().items()},
            **rng,
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        weights, kept = dict(named_weights(self._decoder)), _part(state, "model.")
        if {name: weight.shape for name, weight in weights.items()} != {name: w.shape for name, w in kept.items()}:
            raise WeightError("the state to continue from is of another model")
        for name, weight in weights.items():
            weight.copy_(kept[name])
        self._optimizer.restore(_part(state, "optimizer."))
        torch.set_rng_state(state["rng.cpu"])
        if self._device != "cpu" and "rng.device" in state:
            torch.cuda.set_rng_state(state["rng.device"], self._device)

    def _cut(self, rows: PackedRows) -> list[list[int]]:
        parts, sizes = units(rows, self._max_tokens)
        return [[row for unit in items for row in parts[unit]] for items in micro_batches(sizes, self._max_tokens)[0]]

    def _check(self, rows: PackedRows) -> None:
        limit = self._decoder.config.max_position_embeddings
        longest = int(rows.lengths.max())
        if longest > limit:
            raise DataError(f"a row has {longest} tokens; the model has {limit} positions")
        size, (lowest, highest) = self._decoder.config.vocab_size, rows.input_ids.aminmax()
        if lowest < 0 or highest >= size:
            raise DataError(f"rows have token ids from {lowest} to {highest}; the model's vocabulary has {size}")


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


class _Collected:
    """Outputs of micro-batches, put back in the order of the rows."""

    def __init__(self, rows: PackedRows) -> None:
        self._rows = rows
        self.outputs = TokenOutputs(torch.zeros(len(rows.mask)), torch.zeros(len(rows.mask)))

    def put(self, items: list[int], outputs: TokenOutputs) -> None:
        index = self._rows.token_index(items)
        self.outputs.logprobs[index] = outputs.logprobs.detach()
        self.outputs.entropy[index] = outputs.entropy.detach()
