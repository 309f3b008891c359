"""Right values of ratios, truncation and rejection."""

from __future__ import annotations

import math

import pytest
import torch

from astraflow.train_worker.algorithms.mismatch import (
    log_ratio,
    reject,
    span_ratio,
    token_ratio,
    truncate,
    version_spans,
)


def test_sequence_ratio_is_the_exponential_of_the_mean() -> None:
    ratio = span_ratio(torch.tensor([0.0, 0.5, 1.0]), torch.ones(3), torch.tensor([0, 3]))
    torch.testing.assert_close(ratio, torch.full((3,), math.exp(0.5)))
    assert ratio[0].item() == pytest.approx(1.6487, abs=1e-4)


def test_segments_have_a_ratio_each() -> None:
    means = torch.tensor([0.5, 1.0, 1.5]).repeat_interleave(torch.tensor([3, 5, 4]))
    ratio = span_ratio(means, torch.ones(12), torch.tensor([0, 3, 8, 12]))
    torch.testing.assert_close(ratio, means.exp())


def test_a_sequence_ratio_ignores_what_was_not_sampled() -> None:
    ratio = span_ratio(torch.tensor([7.0, 0.5]), torch.tensor([0, 1]), torch.tensor([0, 2]))
    torch.testing.assert_close(ratio, torch.full((2,), math.exp(0.5)))


def test_segments_are_cut_where_the_version_changes_and_at_rows() -> None:
    versions = torch.tensor([-1, 3, 3, -1, 4, -1, 4, 4])
    mask = torch.tensor([0, 1, 1, 0, 1, 0, 1, 1])
    assert version_spans(versions, mask, torch.tensor([0, 5, 8])).tolist() == [0, 4, 5, 8]


def test_rejection() -> None:
    assert reject(torch.tensor([1.0, 2.718, 1.0]), torch.ones(3), 2.0).int().tolist() == [1, 0, 1]
    assert reject(torch.tensor([1.0, 0.1]), torch.ones(2), 2.0, 0.5).int().tolist() == [1, 0]
    assert reject(torch.ones(2), torch.tensor([0, 1]), 2.0).int().tolist() == [0, 1]


def test_truncation() -> None:
    assert truncate(torch.tensor([math.exp(2)]), 5.0).item() == 5


@pytest.mark.parametrize(("upper", "lower"), [(1.0, 0.0), (0.5, 0.0), (2.0, 1.0), (2.0, -0.1), (math.nan, 0.0)])
def test_bounds_that_exclude_an_unchanged_policy_are_refused(upper: float, lower: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        truncate(torch.ones(1), upper, lower)
    with pytest.raises(ValueError, match="must be"):
        reject(torch.ones(1), torch.ones(1), upper, lower)


def test_impossible_under_both_policies_gives_no_nan() -> None:
    both = torch.tensor([-math.inf], requires_grad=True)
    ratio = token_ratio(both, torch.tensor([-math.inf]), torch.ones(1))
    ratio.sum().backward()
    assert ratio.item() == 1
    assert both.grad is not None
    assert both.grad.item() == 0


def test_extreme_log_ratios_stay_finite() -> None:
    ratio = log_ratio(torch.tensor([0.0, -math.inf]), torch.tensor([-math.inf, 0.0]), torch.ones(2)).exp()
    assert torch.isfinite(ratio).all()
