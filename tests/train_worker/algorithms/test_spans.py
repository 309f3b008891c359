"""Spans of a packed tensor, empty ones included."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.train_worker.algorithms.spans import (
    check_spans,
    last_masked,
    longest_run,
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


@given(rows=st.lists(st.lists(st.booleans(), max_size=9), max_size=5))
def test_the_longest_run_of_each_span(rows: list[list[bool]]) -> None:
    table = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    mask = torch.tensor([masked for row in rows for masked in row], dtype=torch.bool)
    expected = [max((len(list(run)) for masked, run in groupby(row) if masked), default=0) for row in rows]
    assert longest_run(mask, table).tolist() == expected


@pytest.mark.parametrize("table", [None, torch.tensor([0, 2]), torch.tensor([1, 5]), torch.tensor([0, 4, 3, 5])])
def test_a_table_that_does_not_cover_the_tokens_is_refused(table: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match="cu_seqlens"):
        check_spans(table, 5)
