"""The rows of a dataset section."""

from __future__ import annotations

from astraflow.core.data.trajectory import Row
from astraflow.core.dataset import loading
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.dataflow.config import DataflowConfig, DatasetConfig


def load_rows(config: DatasetConfig, *, split: str, seed: int, tokenizer: Tokenizer | None) -> list[Row]:
    """Return the checked rows of a dataset; split and seed are used where the YAML gives none."""
    keywords, max_length = config.keywords, config.max_length
    return loading.load_rows(
        config.dataset_fn, keywords, split=split, seed=seed, tokenizer=tokenizer, max_length=max_length
    )


def load_rollout_rows(config: DataflowConfig, *, seed: int, tokenizer: Tokenizer | None) -> dict[str, list[Row]]:
    """Return the rows of all rollout datasets, by name."""
    return {
        name: load_rows(dataset, split="train", seed=seed, tokenizer=tokenizer)
        for name, dataset in config.rollout_datasets.items()
    }
