"""Right values of M2PO's bounds and of its masking form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.train_worker.algorithms.m2po import m2po_bounds, m2po_mask


@pytest.mark.parametrize(
    ("log_ratio", "sign", "threshold", "expected"),
    [
        ([0.1, 0.2, 0.3, 0.4], 1, 0.04, (0.1812692, 0.2214028, 0.075)),
        ([-0.1, -0.2, -0.3, -0.4], -1, 0.04, (0.1812692, 0.2214028, 0.075)),
        ([0.01, 0.01, 0.01, 2], 1, 0.01, (0.0099502, 0.0100502, 1.000075)),
        ([1, 1], 1, 0.01, (0.6321206, 1.7182818, 1)),
        ([4, 4], 1, 0.01, (0.95, 20, 16)),
        ([0.05, 0.05], 1, 0.01, (0.95, 20, 0.0025)),
        ([-1, -2], 1, 0.01, (0.95, 20, 0)),
        ([1, 2], -1, 0.01, (0.95, 20, 0)),
    ],
)
def test_bounds(log_ratio: list[float], sign: int, threshold: float, expected: tuple[float, float, float]) -> None:
    ratios = torch.tensor(log_ratio, dtype=torch.float32)
    bounds = m2po_bounds(ratios, torch.full_like(ratios, sign), torch.ones(len(ratios)), threshold)
    assert (bounds.eps_low, bounds.eps_high, bounds.moment) == pytest.approx(expected, abs=1e-6)


def test_tokens_that_were_not_sampled_do_not_count() -> None:
    ratios, mask = torch.tensor([0.1, 0.2, 0.3, 0.4, 9.0]), torch.tensor([1, 1, 1, 1, 0])
    bounds = m2po_bounds(ratios, torch.ones(5), mask, 0.04)
    assert bounds.eps_low == pytest.approx(0.1812692, abs=1e-6)


def test_masking_form_removes_the_largest_first() -> None:
    log_ratio = torch.tensor([0.1, 2.0, 0.1, 1.0])
    assert m2po_mask(log_ratio, torch.ones(4), torch.ones(4), 0.04).tolist() == [True, False, True, False]


def test_masking_form_keeps_what_pulls_back() -> None:
    log_ratio, advantages = torch.tensor([2.0, 2.0]), torch.tensor([-1.0, 1.0])
    assert m2po_mask(log_ratio, advantages, torch.ones(2), 0.04).tolist() == [True, False]


@given(st.lists(st.tuples(st.floats(-2, 2), st.sampled_from([-1.0, 1.0])), max_size=20), st.floats(1e-3, 1))
def test_what_the_mask_keeps_meets_the_threshold(rows: list[tuple[float, float]], threshold: float) -> None:
    log_ratio = torch.tensor([row[0] for row in rows], dtype=torch.float64)
    advantages = torch.tensor([row[1] for row in rows], dtype=torch.float64)
    kept = m2po_mask(log_ratio, advantages, torch.ones(len(rows)), threshold)
    violating = kept & (log_ratio * advantages > 0)
    if violating.any():
        assert float(log_ratio[violating].square().mean()) <= threshold * (1 + 1e-9)
    assert kept[log_ratio * advantages <= 0].all()
