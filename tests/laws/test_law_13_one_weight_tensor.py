"""LAW 13. One weight tensor defines numerator and denominator of every aggregate (token, sequence, prompt mean;
constant).
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.train_worker.algorithms.aggregation import LossAggregation, aggregate, token_weights

MEANS: tuple[LossAggregation, ...] = ("token", "sequence", "prompt")


def build(masks: list[list[bool]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mask = torch.tensor([m for row in masks for m in row], dtype=torch.bool)
    rows = torch.tensor([0, *torch.tensor([len(row) for row in masks]).cumsum(0).tolist()])
    return mask, rows, torch.arange(len(masks)) // 2


rows_of_masks = st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=6)


@given(rows_of_masks, st.sampled_from(MEANS), st.floats(-10, 10))
def test_the_mean_of_a_constant_is_the_constant(masks: list[list[bool]], how: LossAggregation, value: float) -> None:
    mask, rows, groups = build(masks)
    mean = aggregate(torch.full((len(mask),), value), token_weights(mask, rows, how, groups)).item()
    assert mean == pytest.approx(value if mask.any() else 0.0, abs=1e-4)


@given(rows_of_masks, st.sampled_from((*MEANS, "constant")))
def test_parts_sum_to_the_whole(masks: list[list[bool]], how: LossAggregation) -> None:
    mask, rows, groups = build(masks)
    values = torch.linspace(-1, 1, len(mask))
    weights = token_weights(mask, rows, how, groups, constant=5.0)
    whole = aggregate(values, weights)
    parts = sum(aggregate(values[start:end], weights[start:end]) for start, end in itertools.pairwise(rows.tolist()))
    torch.testing.assert_close(whole, parts)
