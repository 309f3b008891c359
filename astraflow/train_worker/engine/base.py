"""What a trainer asks of the place where its model's computation runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from astraflow.core.text.tokenizer import Tokenizer
from astraflow.train_worker.packed_rows import PackedRows


@dataclass(frozen=True)
class TokenOutputs:
    """What the model says about each token; 0 where the mask is 0."""

    logprobs: Tensor
    """float32 [T], of the token given those before it, at the engine's temperature."""
    entropy: Tensor
    """float32 [T], nats, of the distribution that the token was drawn from."""


LossFunction = Callable[[PackedRows, TokenOutputs], Tensor]
"""(rows of a micro-batch, their outputs) → loss of each token, float [T]; not read where the mask is 0."""


@dataclass(frozen=True)
class StepResult:
    """One optimiser step over a minibatch."""

    loss: float
    """Σ weights × loss, over all rows."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    outputs: TokenOutputs
    """Of the policy before the step, without gradient."""
    skipped: bool = False
    """The gradient was not finite, and nothing was changed."""


@dataclass(frozen=True)
class RowLimits:
    """What a row may be at most for an engine to take it."""

    vocab_size: int
    """Token ids are below this."""
    tokens: int
    """Of one row: the model's positions, or those of one forward pass (`mb_spec.max_tokens_per_mb`)."""


class TrainEngine(Protocol):
    """Computes and trains one model. Rows in, per-token values out; how they are cut and where they run is its own."""

    @property
    def limits(self) -> RowLimits:
        """Rows beyond this are refused by `forward` and `train_step`."""

    def forward(self, rows: PackedRows) -> TokenOutputs:
        """Score rows with the current weights, without gradient."""

    def train_step(self, rows: PackedRows, weights_T: Tensor, loss: LossFunction) -> StepResult:
        """One optimiser step on Σ weights × loss over all of `rows`.

        `weights_T` is made over the whole minibatch: the gradient does not depend on how the engine cuts it (LAW 12).
        """

    def release(self) -> None:
        """Give back the memory that only steps need; called when a batch is trained."""

    def named_weights(self) -> list[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of every weight in a fixed order, tied ones once."""

    def aliases(self) -> dict[str, tuple[str, ...]]:
        """Other names of the tied ones."""

    def save(self, directory: Path, tokenizer: Tokenizer) -> None:
        """Write the model in Hugging Face layout."""


@runtime_checkable
class Restorable(Protocol):
    """An engine that can go on exactly where another process was."""

    def state(self) -> dict[str, Tensor]:
        """Model, optimiser, schedule and random state, by name; live tensors."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned. WeightError where it is of another model."""
