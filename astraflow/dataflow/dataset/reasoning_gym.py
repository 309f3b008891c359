"""Public alias of `astraflow.core.dataset.reasoning_gym`."""

from astraflow.core.dataset.reasoning_gym import (
    get_reasoning_gym_rl_dataset,
    get_reasoning_gym_sft_dataset,
    score,
)

__all__ = ["get_reasoning_gym_rl_dataset", "get_reasoning_gym_sft_dataset", "score"]
