"""What the trainer's model makes of the canaries (LAW 18): published with a version, compared by every engine."""

from __future__ import annotations

import torch

from astraflow.core.data import Canary
from astraflow.core.weight_manager.canary import canary_tokens
from astraflow.train_worker.engine.base import TrainEngine
from astraflow.train_worker.packed_rows import PackedRows

EMBEDDING = "embed_tokens.weight"


def scored_canaries(engine: TrainEngine, temperature: float) -> tuple[Canary, ...]:
    """Score the canaries with the current weights; `temperature` is the engine's own.

    Their ids are those that the model has a row for, which may be fewer or more than the tokenizer's.
    """
    sequences = canary_tokens(next(len(weight) for name, weight in engine.named_weights() if name.endswith(EMBEDDING)))
    ids = torch.tensor(sequences)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    lengths = torch.full((len(sequences),), ids.shape[1])
    logprobs = engine.forward(PackedRows(lengths, ids.flatten(), mask.flatten()).check()).logprobs
    rows = logprobs.view(ids.shape)[:, 1:].tolist()
    return tuple(
        Canary(tokens=tokens, logprobs=tuple(row), temperature=temperature)
        for tokens, row in zip(sequences, rows, strict=True)
    )
