"""Golden values: a seeded model, seeded rows, and what every loss and its gradient were when they were last looked at.

A change here is a change of what is learnt. Values are float32 sums of a few hundred terms: compared to 1e-4.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from astraflow.core.model import new_model
from astraflow.train_worker.algorithms.aggregation import token_weights
from astraflow.train_worker.config import ActorConfig, OptimizerConfig
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.packed_rows import PackedRows
from astraflow.train_worker.trainer.policy_objective import PolicyObjective

GOLDEN = {
    "ppo": (0.270304, 4.125911),
    "clip_higher": (0.264883, 4.497393),
    "dual_clip": (0.261234, 3.959163),
    "decoupled": (0.224518, 4.707456),
    "decoupled_capped": (0.219573, 4.210239),
    "m2po": (0.253364, 4.602657),
    "entropy": (0.225455, 4.125604),
    "sequence": (0.299270, 4.636929),
    "prompt": (0.278396, 4.193925),
    "constant": (0.157677, 2.406781),
}
"""Case → (loss, gradient norm)."""

CASES: dict[str, dict[str, Any]] = {
    "ppo": {"loss": "ppo"},
    "clip_higher": {"loss": "ppo", "eps_clip_higher": 0.28},
    "dual_clip": {"loss": "ppo", "c_clip": 1.5},
    "decoupled": {"loss": "decoupled"},
    "decoupled_capped": {"loss": "decoupled", "behav_imp_weight_cap": 1.2},
    "m2po": {"loss": "m2po", "m2_threshold": 0.04},
    "entropy": {"loss": "ppo", "entropy_coef": 0.01},
    "sequence": {"loss": "ppo", "loss_agg": "sequence"},
    "prompt": {"loss": "ppo", "loss_agg": "prompt"},
    "constant": {"loss": "ppo", "loss_agg": "constant", "loss_constant": 10.0},
}


def engine() -> NativeEngine:
    """A small model whose weights depend on nothing but this function."""
    decoder = new_model("tiny-0.2m")
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in decoder.parameters():
            spread = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * spread if parameter.ndim == 1 else 0.05 * spread)
    return NativeEngine(decoder, OptimizerConfig(), 1, temperature=0.8)


def rows() -> PackedRows:
    generator = torch.Generator().manual_seed(17)
    lengths = torch.randint(4, 14, (12,), generator=generator)
    total = int(lengths.sum())
    mask = torch.rand(total, generator=generator) < 0.7
    packed = PackedRows(lengths, torch.randint(0, 100, (total,), generator=generator), mask)
    packed.mask[packed.cu_seqlens[:-1]] = False
    noise = torch.randn(3, total, generator=generator)
    current = engine().forward(packed).logprobs
    return packed.with_streams(
        behaviour_logprobs=torch.where(mask, current - 0.3 * noise[0], 0.0),
        proximal_logprobs=torch.where(mask, current - 0.15 * noise[1], 0.0),
        advantages=torch.where(mask, noise[2], 0.0),
    )


def compute(case: str) -> tuple[float, float]:
    actor = ActorConfig(**CASES[case])
    packed = rows()
    groups = torch.arange(12) // 3
    weights = token_weights(packed.mask, packed.cu_seqlens, actor.loss_agg, groups, actor.loss_constant)
    result = engine().train_step(packed, weights, PolicyObjective.of(actor, packed))
    return result.loss, result.grad_norm


@pytest.mark.parametrize("case", list(CASES))
def test_golden(case: str) -> None:
    assert compute(case) == pytest.approx(GOLDEN[case], abs=1e-4)
