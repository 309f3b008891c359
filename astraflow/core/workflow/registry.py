"""Workflows and rewards by name, "module:attr" or entry point."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from astraflow.registry import Registry

T = TypeVar("T")

WORKFLOW_REGISTRY = Registry(
    "workflow",
    {"rlvr": "astraflow.core.workflow.impl.rlvr:RLVRWorkflow"},
    entry_point_group="astraflow.workflows",
)
REWARD_REGISTRY = Registry(
    "reward",
    {
        "answer_line": "astraflow.core.workflow.reward.form:ends_in_answer_line",
        "equation": "astraflow.core.workflow.reward.form:is_one_equation",
        "math_format": "astraflow.core.workflow.reward.math_format:math_format_reward",
        "math_verify": "astraflow.core.workflow.reward.math_verify:math_verify_reward",
    },
    entry_point_group="astraflow.rewards",
)

REWARD_EXTRAS = {"math_format": ("math_verify", "math"), "math_verify": ("math_verify", "math")}
"""Reward → (package that it imports, extra of ours that installs it)."""


def register_workflow(name: str) -> Callable[[T], T]:
    """Register a RolloutWorkflow class of this process under `name`."""
    return WORKFLOW_REGISTRY.register(name)


def register_reward(name: str) -> Callable[[T], T]:
    """Register a reward function of this process under `name`."""
    return REWARD_REGISTRY.register(name)
