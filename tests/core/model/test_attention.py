"""Packed attention: each sequence as if it were alone, whatever it is packed with; gradients too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from astraflow.core.model import packed_attention, packed_positions
from astraflow.errors import DataError


def alone(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    """One sequence at a time."""
    rows = []
    for part in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
        q_1, k_1, v_1 = (x.transpose(0, 1)[None] for x in part)
        row = F.scaled_dot_product_attention(q_1, k_1, v_1, is_causal=True, enable_gqa=True)
        rows.append(row[0].transpose(0, 1))
    return torch.cat(rows)


@pytest.mark.parametrize("lengths", [[5], [1, 1], [3, 4, 3], [1, 40, 2, 17, 3, 100, 16, 33]])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_output_and_gradients_are_those_of_each_sequence_alone(lengths: list[int], kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(sum(lengths), heads, 8, generator=generator, requires_grad=True)
        for heads in (4, kv_heads, kv_heads)
    )
    upstream = torch.randn(sum(lengths), 4, 8, generator=generator)
    attend = packed_attention(torch.tensor([0, *lengths]).cumsum(0))
    packed = attend(0, q, k, v)
    expected = alone(q, k, v, lengths)
    torch.testing.assert_close(packed, expected, atol=1e-5, rtol=1e-5)
    for mine, other in zip(
        torch.autograd.grad(packed, [q, k, v], upstream),
        torch.autograd.grad(expected, [q, k, v], upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


def test_a_long_sequence_does_not_pad_the_short_ones() -> None:
    attend = packed_attention(torch.tensor([0, *([10] * 50), 1000]).cumsum(0))
    assert sum(bucket.rows * bucket.width for bucket in attend._buckets) == 1500


def test_positions_start_anew_in_each_sequence() -> None:
    assert packed_positions(torch.tensor([0, 3, 4, 6])).tolist() == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize("borders", [[0], [1, 3], [0, 2, 2], [0, 3, 1]])
def test_borders_that_do_not_rise_from_zero_are_refused(borders: list[int]) -> None:
    with pytest.raises(DataError, match="cu_seqlens"):
        packed_attention(torch.tensor(borders))
