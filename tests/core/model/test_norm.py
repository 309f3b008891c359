"""The norm's own backward pass against autograd through the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from astraflow.core.model.norm import rms_norm


def formula(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


@pytest.mark.parametrize(("shape", "weight_shape"), [((7, 12), (12,)), ((5, 3, 8), (3, 8)), ((5, 3, 8), (8,))])
def test_value_and_gradients_follow_the_formula(shape: tuple[int, ...], weight_shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator, requires_grad=True)
    weight = torch.randn(weight_shape, generator=generator, requires_grad=True)
    upstream = torch.randn(shape, generator=generator)
    ours, expected = rms_norm(x, weight, 1e-6), formula(x, weight)
    torch.testing.assert_close(ours, expected)
    for mine, other in zip(
        torch.autograd.grad(ours, [x, weight], upstream),
        torch.autograd.grad(expected, [x, weight], upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected)


def test_bfloat16_takes_its_statistics_in_float32() -> None:
    x = torch.full((1, 4096), 0.1, dtype=torch.bfloat16, requires_grad=True)
    normed = rms_norm(x, torch.ones(4096, dtype=torch.bfloat16, requires_grad=True), 1e-6)
    assert normed.dtype == torch.bfloat16
    torch.testing.assert_close(normed.float(), torch.ones(1, 4096), atol=1e-2, rtol=0)
