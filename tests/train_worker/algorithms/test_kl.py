"""Right values of the KL estimators."""

from __future__ import annotations

import pytest
import torch

from astraflow.train_worker.algorithms.kl import exact_kl, kl_estimate


@pytest.mark.parametrize(("kind", "expected"), [("k1", 0.5), ("k2", 0.125), ("k3", 0.1065307)])
def test_estimators(kind: str, expected: float) -> None:
    assert kl_estimate(torch.tensor([0.5]), torch.zeros(1), kind).item() == pytest.approx(expected, abs=1e-6)  # type: ignore[arg-type]


def test_the_result_is_clamped_not_the_difference() -> None:
    d = torch.tensor([-5.0])
    assert kl_estimate(d, torch.zeros(1), "k3", clamp=None).item() == pytest.approx(142.41, abs=0.01)
    assert kl_estimate(d, torch.zeros(1), "k3").item() == 10
    assert kl_estimate(torch.tensor([-30.0]), torch.zeros(1), "k1").item() == -10


def test_an_unknown_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="k1, k2, k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")  # type: ignore[arg-type]


def test_exact_kl_of_two_coins() -> None:
    fair, biased = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.75, 0.25]]).log()
    assert exact_kl(fair, biased).item() == pytest.approx(0.5 * torch.tensor(4 / 3).log().item(), abs=1e-6)
