"""Weights are numerator and denominator."""

from __future__ import annotations

import math

import pytest
import torch

from astraflow.train_worker.algorithms.aggregation import LossAggregation, aggregate, masked_mean, token_weights

MASK = torch.tensor([0, 1, 1, 0, 1, 0, 0])
ROWS = torch.tensor([0, 3, 5, 7])
GROUPS = torch.tensor([8, 8, 9])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token", [0, 1 / 3, 1 / 3, 0, 1 / 3, 0, 0]),
        ("sequence", [0, 1 / 4, 1 / 4, 0, 1 / 2, 0, 0]),
        ("prompt", [0, 1 / 3, 1 / 3, 0, 1 / 3, 0, 0]),
        ("constant", [0, 1 / 30, 1 / 30, 0, 1 / 30, 0, 0]),
    ],
)
def test_weights(how: LossAggregation, expected: list[float]) -> None:
    assert token_weights(MASK, ROWS, how, GROUPS, 10.0).tolist() == pytest.approx(expected)


def test_prompt_mean_weighs_prompts_alike() -> None:
    weights = token_weights(MASK, ROWS, "prompt", torch.tensor([8, 9, 9]))
    assert weights.tolist() == pytest.approx([0, 0.25, 0.25, 0, 0.5, 0, 0])


def test_what_has_no_weight_is_not_looked_at() -> None:
    values = torch.full((7,), math.nan)
    values[MASK.bool()] = 2.0
    assert aggregate(values, token_weights(MASK, ROWS)).item() == pytest.approx(2)
    assert masked_mean(values, MASK).item() == pytest.approx(2)


@pytest.mark.parametrize("how", ["token", "sequence", "prompt", "constant"])
def test_all_masked(how: LossAggregation) -> None:
    weights = token_weights(torch.zeros(7), ROWS, how, GROUPS, 10.0)
    assert aggregate(torch.full((7,), math.inf), weights).item() == 0


@pytest.mark.parametrize(("how", "message"), [("prompt", "group_id"), ("constant", "constant"), ("row", "unknown")])
def test_what_is_missing_is_named(how: LossAggregation, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        token_weights(MASK, ROWS, how)
