"""SwiGLU (Shazeer, 2020) on gate and up side by side, with a backward pass that writes both gradients in place."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) · up, [T, I], of gate and up laid side by side, [T, 2·I]."""
    if torch.is_grad_enabled():
        gated: Tensor = _SwiGLU.apply(gate_up)  # type: ignore[no-untyped-call]
        return gated
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        grads = torch.empty_like(gate_up)
        grad_gate, grad_up = grads.chunk(2, -1)
        torch.mul(grad, F.silu(gate), out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return grads
