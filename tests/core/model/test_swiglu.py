"""SwiGLU's own backward pass against autograd through the formula."""

from __future__ import annotations

import torch

from astraflow.core.model.swiglu import swiglu


def test_value_and_gradient_follow_the_formula() -> None:
    generator = torch.Generator().manual_seed(1)
    gate_up = (3 * torch.randn(9, 14, generator=generator)).requires_grad_()
    upstream = torch.randn(9, 7, generator=generator)
    gate, up = gate_up.split(7, -1)
    expected = gate * gate.sigmoid() * up
    ours = swiglu(gate_up)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(
        torch.autograd.grad(ours, gate_up, upstream)[0], torch.autograd.grad(expected, gate_up, upstream)[0]
    )
    with torch.no_grad():
        torch.testing.assert_close(swiglu(gate_up), expected)
