"""Datasets by name, "module:function" or entry point."""

from __future__ import annotations

from astraflow.registry import Registry

DATASET_REGISTRY = Registry(
    "dataset",
    {
        "gsm8k": "astraflow.core.dataset.gsm8k:get_gsm8k_rl_dataset",
        "reasoning_gym": "astraflow.core.dataset.reasoning_gym:get_reasoning_gym_rl_dataset",
        "reasoning_gym_sft": "astraflow.core.dataset.reasoning_gym:get_reasoning_gym_sft_dataset",
    },
    entry_point_group="astraflow.datasets",
)
