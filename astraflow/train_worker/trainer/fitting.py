"""Rows that nothing can be trained on are set aside and counted: what a workflow returned never ends the run (LAW 27).

The borders of workflows and of Dataflow refuse most of them; a trainer is the only one that knows its engine's limits.
Like samples without a reward they are in no statistic and in no denominator.
"""

from __future__ import annotations

import logging

import numpy as np

from astraflow.core.data import Batch
from astraflow.errors import DataError
from astraflow.train_worker.engine.base import RowLimits

LOGGER = logging.getLogger("astraflow.trainer")

MOST_EMPTY = 3
"""Batches in a row without any row to train on before the run stops: the limits do not fit what is sampled."""


class Fitting:
    """Sets rows aside, batch by batch."""

    def __init__(self, limits: RowLimits) -> None:
        self._limits = limits
        self._empty = 0

    def of(self, batch: Batch) -> tuple[Batch | None, dict[str, float]]:
        """Return the rows that can be trained on, None where there are none, and how many cannot.

        DataError, with the last row's fault, where MOST_EMPTY batches in a row had none.
        """
        faults = {row: fault for row in range(len(batch.lengths)) if (fault := self._fault(batch, row)) is not None}
        counted = {"batch/unfit_rows": float(len(faults))}
        if not faults:
            self._empty = 0
            return batch, counted
        row, fault = next(reversed(faults.items()))
        LOGGER.warning("%d of %d rows are not trained on; row %d %s", len(faults), len(batch.lengths), row, fault)
        kept = [row for row in range(len(batch.lengths)) if row not in faults]
        self._empty = 0 if kept else self._empty + 1
        if self._empty == MOST_EMPTY:
            raise DataError(f"no row of {MOST_EMPTY} batches can be trained on: row {row} of the last {fault}")
        return (batch.select(kept) if kept else None), counted

    def _fault(self, batch: Batch, row: int) -> str | None:
        start, end = batch.offsets[row : row + 2]
        ids, mask = batch.input_ids[start:end], batch.loss_mask[start:end]
        if len(ids) < 2:
            return f"has {len(ids)} tokens, nothing to predict"
        if mask[0]:
            return "is sampled from its first token, which nothing predicts"
        if len(ids) > self._limits.tokens:
            return (
                f"has {len(ids)} tokens; the model's positions and actor.mb_spec.max_tokens_per_mb allow "
                f"{self._limits.tokens}"
            )
        if not 0 <= ids.min() <= ids.max() < self._limits.vocab_size:
            return f"has token ids from {ids.min()} to {ids.max()}; the vocabulary has {self._limits.vocab_size}"
        if not np.isfinite(batch.logprobs[start:end][mask.astype(bool)]).all():
            return "has a logprob that is not finite"
        return None
