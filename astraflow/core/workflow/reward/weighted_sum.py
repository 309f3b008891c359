"""A reward of several parts, each a reward function with a weight."""

from __future__ import annotations

from typing import Any

from astraflow.core.data import Invalid, Reward, Value
from astraflow.core.workflow.reward.outcome import to_reward
from astraflow.core.workflow.reward.shipping import RewardFunction


class WeightedSum:
    """A reward function: the sum of weight × value over its parts.

    `WeightedSum(correct=(1.0, math_verify_reward), format=(0.1, ends_in_answer_line))`. The parts' own values are kept
    in `Value.parts`; the first part that is Invalid makes the whole so, for its reason.
    """

    def __init__(self, **parts: tuple[float, RewardFunction]) -> None:
        self.parts = parts

    def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any
    ) -> Reward:
        total = 0.0
        values: dict[str, float] = {}
        for name, (weight, function) in self.parts.items():
            reward = to_reward(function(prompt, completions, prompt_ids, completion_ids, **row))
            if isinstance(reward, Invalid):
                return Invalid(reward.reason, f"{name}: {reward.detail}")
            total += weight * reward.value
            values[name] = reward.value
        return Value(total, values)
