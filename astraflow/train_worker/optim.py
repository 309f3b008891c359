"""AdamW and its learning rate. Master weights are float32 whatever type the model computes in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from astraflow.errors import InvariantError
from astraflow.train_worker.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Rate of optimiser step `step` (from 0) of `total_steps`.

    Linear from lr / warmup_steps to lr over the warm-up; then constant, or linear or cosine (SGDR, arXiv 1608.03983,
    eq. 5, one period) down to lr × min_lr_ratio at the last step.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.lr_scheduler_type == "constant":
        return config.lr
    done = (step - config.warmup_steps) / max(total_steps - 1 - config.warmup_steps, 1)
    left = 1 - min(done, 1.0)
    if config.lr_scheduler_type == "cosine":
        left = (1 - math.cos(math.pi * left)) / 2
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * left)


@dataclass(frozen=True)
class Update:
    """What one optimiser step did."""

    grad_norm: float
    """Global L2 norm before clipping."""
    learning_rate: float


class Optimizer:
    """AdamW (arXiv 1711.05101) on float32 masters of the parameters.

    A float32 parameter is its own master. Gradients of another type are added to the master's in float32 as soon as
    they are made, so accumulation loses nothing. Vectors (norms, biases) are not decayed.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: OptimizerConfig, total_steps: int) -> None:
        self._config = config
        self._total_steps = total_steps
        self._step = 0
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._masters = [self._master(parameter) for parameter in self._parameters]
        groups = [
            {"params": [m for m in self._masters if m.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [m for m in self._masters if m.ndim <= 1], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )

    @property
    def steps_done(self) -> int:
        return self._step

    def zero_grad(self) -> None:
        for tensor in (*self._parameters, *self._masters):
            tensor.grad = None

    def step(self) -> Update:
        """Clip, update, advance the schedule. InvariantError where the gradient is not finite: nothing is changed."""
        norm = float(nn.utils.clip_grad_norm_(self._masters, self._config.gradient_clipping))
        if not math.isfinite(norm):
            raise InvariantError(f"the gradient's norm is {norm} at optimiser step {self._step}")
        rate = learning_rate(self._config, self._step, self._total_steps)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                if parameter is not master:
                    parameter.copy_(master)
        self._step += 1
        return Update(norm, rate)

    def _master(self, parameter: nn.Parameter) -> Tensor:
        if parameter.dtype == torch.float32:
            return parameter
        master = parameter.detach().to(torch.float32).requires_grad_()

        def move_gradient(made: Tensor) -> None:
            if made.grad is not None:
                gradient = made.grad.to(torch.float32)
                master.grad = gradient if master.grad is None else master.grad + gradient
                made.grad = None

        parameter.register_post_accumulate_grad_hook(move_gradient)  # type: ignore[no-untyped-call]
        return master
