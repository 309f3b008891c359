"""AdamW and its learning rate. Master weights are float32 whatever type the model computes in."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from astraflow.errors import InvariantError, WeightError
from astraflow.train_worker.config import OptimizerConfig

LOGGER = logging.getLogger("astraflow.train_worker")

_MASTER = "master"
"""Name of a float32 master among the state of its parameter."""

MOST_SKIPPED = 5
"""Optimiser steps in a row whose gradient is not finite before the run stops: one is an unlucky batch, five are weights
or data that no further batch mends."""


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
    """Global L2 norm before clipping; not finite where the step was skipped."""
    learning_rate: float
    skipped: bool = False
    """The gradient was not finite: neither weights nor AdamW's means changed."""


class Optimizer:
    """AdamW (arXiv 1711.05101) on float32 masters of the parameters.

    A float32 parameter is its own master. Gradients of another type are added to the master's in float32 as soon as
    they are made, so accumulation loses nothing. Vectors (norms, biases) are not decayed. A step whose gradient is not
    finite is skipped; MOST_SKIPPED of them in a row are an error.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: OptimizerConfig, total_steps: int) -> None:
        self._config = config
        self._total_steps = total_steps
        self._step = 0
        self._skipped = 0
        """Steps in a row that were skipped."""
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

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, but for parameters that are their own masters; live tensors."""
        state = {"steps_done": torch.tensor(self._step)}
        for number, (parameter, master) in enumerate(zip(self._parameters, self._masters, strict=True)):
            state |= {f"{number}.{name}": value for name, value in self._adamw.state.get(master, {}).items()}
            if parameter is not master:
                state[f"{number}.{_MASTER}"] = master.detach()
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned. WeightError where it is of other parameters."""
        fields: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            index, _, field = name.partition(".")
            if field:
                fields.setdefault(int(index), {})[field] = value
        for number, master in enumerate(self._masters):
            found = fields.pop(number, {})
            if any(value.shape not in ((), master.shape) for value in found.values()):
                raise WeightError(
                    f"the optimiser's state of parameter {number} does not fit shape {tuple(master.shape)}"
                )
            kept = found.pop(_MASTER, None)
            if kept is not None:
                with torch.no_grad():
                    master.copy_(kept)
            if found:
                self._adamw.state[master] = {name: value.to(master.device) for name, value in found.items()}
        if fields:
            raise WeightError(f"the optimiser's state has {len(fields)} parameters more than the model")
        self._step = int(state["steps_done"])

    def zero_grad(self) -> None:
        for tensor in (*self._parameters, *self._masters):
            tensor.grad = None

    def step(self) -> Update:
        """Clip, update, advance the schedule. A gradient that is not finite changes nothing but the schedule.

        InvariantError where that happened MOST_SKIPPED times in a row.
        """
        norm = float(nn.utils.clip_grad_norm_(self._masters, self._config.gradient_clipping))
        rate = learning_rate(self._config, self._step, self._total_steps)
        if not math.isfinite(norm):
            return self._skip(norm, rate)
        self._skipped = 0
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                if parameter is not master:
                    parameter.copy_(master)
        self._step += 1
        return Update(norm, rate)

    def _skip(self, norm: float, rate: float) -> Update:
        self.zero_grad()
        self._skipped += 1
        if self._skipped == MOST_SKIPPED:
            raise InvariantError(
                f"the gradient's norm is {norm} at optimiser step {self._step}, and was not finite at the "
                f"{MOST_SKIPPED - 1} before: the weights or the batches hold what nothing can be computed from; the "
                "last state that was kept is from before"
            )
        LOGGER.warning("optimiser step %d is skipped: the gradient's norm is %s", self._step, norm)
        self._step += 1
        return Update(norm, rate, skipped=True)

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
