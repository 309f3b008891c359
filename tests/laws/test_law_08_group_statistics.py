"""LAW 8. Group statistics are taken over a group id; a short, partial or single-sample group has a defined, tested
result.
"""

from __future__ import annotations

import pytest
import torch

from astraflow.train_worker.algorithms.normalisation import normalise
from astraflow.train_worker.config import NormConfig


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 1, 2]])
def test_interleaved_groups_of_unequal_size(order: list[int]) -> None:
    values, groups = torch.tensor([1.0, 0, 1, 5, 2]), torch.tensor([4, 9, 9, 4, 7])
    expected = torch.tensor([-0.70710, -0.70710, 0.70710, 0.70710, 0])
    torch.testing.assert_close(
        normalise(values[order], groups[order], NormConfig()), expected[order], atol=1e-4, rtol=0
    )


def test_a_partial_group_uses_what_it_has() -> None:
    full = normalise(torch.tensor([1.0, 0, 0]), torch.tensor([1, 1, 1]), NormConfig())
    with_neighbour = normalise(torch.tensor([1.0, 0, 9, 0]), torch.tensor([1, 1, 2, 1]), NormConfig())
    torch.testing.assert_close(full, with_neighbour[[0, 1, 3]])


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_a_single_sample_is_exactly_zero(leave_one_out: bool) -> None:
    norm = NormConfig(mean_leave_one_out=leave_one_out)
    assert normalise(torch.tensor([3.7]), torch.tensor([1]), norm).tolist() == [0.0]
