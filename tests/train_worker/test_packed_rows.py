"""Rows laid end to end."""

from __future__ import annotations

import pytest
import torch

from astraflow.errors import DataError
from astraflow.train_worker.packed_rows import PackedRows

ROWS = PackedRows(
    torch.tensor([2, 2, 3]),
    torch.arange(7),
    torch.tensor([0, 1, 0, 0, 0, 1, 1]).bool(),
    {"x": torch.arange(7) * 10},
)


def test_select() -> None:
    part = ROWS.check().select([2, 0])
    assert part.lengths.tolist() == [3, 2]
    assert part.input_ids.tolist() == [4, 5, 6, 0, 1]
    assert part.mask.tolist() == [False, True, True, False, True]
    assert part.streams["x"].tolist() == [40, 50, 60, 0, 10]
    assert part.cu_seqlens.tolist() == [0, 3, 5]


def test_with_streams() -> None:
    assert set(ROWS.with_streams(y=torch.zeros(7)).streams) == {"x", "y"}
    with pytest.raises(DataError, match="y has shape"):
        ROWS.with_streams(y=torch.zeros(5)).check()


@pytest.mark.parametrize(
    ("lengths", "mask", "message"),
    [
        ([2, 4], [1, 0, 0, 0, 0, 0], "row 0 is trained from its first token"),
        ([0, 6], [0, 0, 0, 0, 0, 0], "row 0 has 0 tokens"),
        ([5, 1], [0, 0, 0, 0, 0, 0], "row 1 has 1 tokens"),
        ([5], [0, 0, 0, 0, 0, 0], "expected"),
    ],
)
def test_what_is_wrong_is_named(lengths: list[int], mask: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        PackedRows(torch.tensor(lengths), torch.arange(6), torch.tensor(mask).bool()).check()
