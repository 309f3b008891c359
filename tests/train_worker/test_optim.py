"""Schedules and AdamW."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from astraflow.train_worker.config import OptimizerConfig
from astraflow.train_worker.optim import Optimizer, learning_rate


def rates(total: int, **options: object) -> list[float]:
    config = OptimizerConfig(lr=1.0, **options)
    return [learning_rate(config, step, total) for step in range(total)]


def test_schedules() -> None:
    assert rates(3) == [1, 1, 1]
    assert rates(4, warmup_steps=2) == [0.5, 1, 1, 1]
    assert rates(5, lr_scheduler_type="linear") == [1, 0.75, 0.5, 0.25, 0]
    assert rates(5, lr_scheduler_type="cosine", min_lr_ratio=0.5) == pytest.approx(
        [1, 0.5 + 0.25 * (1 + math.cos(math.pi / 4)), 0.75, 0.5 + 0.25 * (1 - math.cos(math.pi / 4)), 0.5]
    )
    assert rates(6, lr_scheduler_type="linear", warmup_steps=3) == pytest.approx([1 / 3, 2 / 3, 1, 1, 0.5, 0])
    assert rates(1, lr_scheduler_type="cosine") == [1]


def test_past_the_end_the_rate_stays() -> None:
    config = OptimizerConfig(lr=1.0, lr_scheduler_type="linear", min_lr_ratio=0.1)
    assert learning_rate(config, 50, 5) == pytest.approx(0.1)


def test_first_update_is_the_learning_rate_times_the_sign() -> None:
    parameter = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    optimizer = Optimizer([parameter], OptimizerConfig(lr=0.1, gradient_clipping=1.0), 1)
    (parameter * torch.tensor([[3.0, -4.0]])).sum().backward()
    update = optimizer.step()
    assert update.grad_norm == pytest.approx(5)
    assert parameter.tolist()[0] == pytest.approx([0.9, -1.9])


def test_vectors_are_not_decayed() -> None:
    matrix, vector = nn.Parameter(torch.ones(1, 1)), nn.Parameter(torch.ones(1))
    optimizer = Optimizer([matrix, vector], OptimizerConfig(lr=0.1, weight_decay=0.5), 1)
    (0 * matrix.sum() + 0 * vector.sum()).backward()
    optimizer.step()
    assert (matrix.item(), vector.item()) == (pytest.approx(0.95), 1)


def test_gradients_of_a_half_type_are_added_up_in_float32() -> None:
    parameter = nn.Parameter(torch.ones(1, 1, dtype=torch.bfloat16))
    optimizer = Optimizer([parameter], OptimizerConfig(gradient_clipping=1e9), 1)
    for part in (256.0, 1.0, 1.0):
        (parameter * part).sum().backward()
    assert parameter.grad is None
    assert optimizer.step().grad_norm == 258  # in bfloat16, 256 + 1 is 256
