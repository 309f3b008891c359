"""LAW 17. A critic's bootstrap value is used only for rows that really ended without an end token."""

from __future__ import annotations

import pytest
import torch

from astraflow.train_worker.algorithms.advantage import gae

MASK = torch.tensor([0, 1, 1, 0, 1, 1])
ROWS = torch.tensor([0, 3, 6])


def run(truncated: list[int]) -> list[float]:
    rewards, values = torch.zeros(6), torch.zeros(6)
    bootstrap = torch.tensor([4.0, 8.0])
    advantages, _ = gae(
        rewards, values, MASK, ROWS, gamma=0.5, bootstrap_N=bootstrap, truncated_N=torch.tensor(truncated)
    )
    return advantages[MASK.bool()].tolist()


def test_only_the_row_that_was_cut() -> None:
    assert run([0, 1]) == [0, 0, 2, 4]
    assert run([1, 0]) == [1, 2, 0, 0]
    assert run([0, 0]) == [0, 0, 0, 0]


def test_a_bootstrap_without_the_rows_ends_is_refused() -> None:
    with pytest.raises(ValueError, match="truncated"):
        gae(torch.zeros(6), torch.zeros(6), MASK, ROWS, bootstrap_N=torch.ones(2))
