"""Spans of a packed tensor, empty ones included."""

from __future__ import annotations

import pytest
import torch

from astraflow.train_worker.algorithms.spans import (
    check_spans,
    last_masked,
    span_count,
    span_mean,
    span_of_token,
    span_sum,
)

TABLE = torch.tensor([0, 2, 2, 5])
VALUES = torch.tensor([1.0, 2, 3, 4, 5])
MASK = torch.tensor([1, 1, 0, 1, 0])


def test_reductions() -> None:
    assert span_of_token(TABLE).tolist() == [0, 0, 2, 2, 2]
    assert span_sum(VALUES, MASK, TABLE).tolist() == [3, 0, 4]
    assert span_count(MASK, TABLE).tolist() == [2, 0, 1]
    assert span_mean(VALUES, MASK, TABLE).tolist() == [1.5, 0, 4]
    assert last_masked(MASK, TABLE).tolist() == [1, -1, 3]


@pytest.mark.parametrize("table", [None, torch.tensor([0, 2]), torch.tensor([1, 5]), torch.tensor([0, 4, 3, 5])])
def test_a_table_that_does_not_cover_the_tokens_is_refused(table: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match="cu_seqlens"):
        check_spans(table, 5)
