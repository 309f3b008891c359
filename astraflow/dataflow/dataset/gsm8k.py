"""Public alias of `astraflow.core.dataset.gsm8k`."""

from astraflow.core.dataset.gsm8k import get_gsm8k_rl_dataset

__all__ = ["get_gsm8k_rl_dataset"]
