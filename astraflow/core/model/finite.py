"""Finite weights: one NaN makes every logprob NaN, and the programs that meet it later get the blame.

So they are refused where weights enter (load) and where a trainer is about to publish them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HAS_A_MAXIMUM = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def all_finite(values: Tensor) -> Tensor:
    """Return a bool on the tensor's device: whether it holds neither NaN nor infinity. Takes no memory beside it."""
    if values.numel() == 0 or not values.is_floating_point():
        return torch.ones((), dtype=torch.bool, device=values.device)
    if values.dtype not in _HAS_A_MAXIMUM:  # float8
        values = values.to(torch.bfloat16)
    low, high = torch.aminmax(values)  # each is NaN where any value is
    return low.isfinite() & high.isfinite()


def describe_non_finite(values: Tensor) -> str:
    """Say how much of a tensor is not finite: "3 of 64 values are NaN or infinite"."""
    count = int((~torch.isfinite(values.to(torch.float32))).sum())
    return f"{count} of {values.numel()} values are NaN or infinite"
