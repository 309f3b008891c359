"""The rows of a dataset section."""

from __future__ import annotations

from collections.abc import Sequence

from astraflow.core.data import encode
from astraflow.core.data.trajectory import Row
from astraflow.core.dataset import loading
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.dataflow.config import DataflowConfig, DatasetConfig
from astraflow.dataflow.orders import ROW_BYTES
from astraflow.errors import DataError


def load_rows(config: DatasetConfig, *, split: str, seed: int, tokenizer: Tokenizer | None) -> list[Row]:
    """Return the checked rows of a dataset; split and seed are used where the YAML gives none."""
    keywords, max_length = config.keywords, config.max_length
    rows = loading.load_rows(
        config.dataset_fn, keywords, split=split, seed=seed, tokenizer=tokenizer, max_length=max_length
    )
    check_sizes(rows, config.dataset_fn)
    return rows


def check_sizes(rows: Sequence[Row], name: str) -> None:
    """Raise DataError for a row that fits into no body: no RaaS would ever get it."""
    for index, row in enumerate(rows):
        size = len(encode(row))
        if size > ROW_BYTES:
            raise DataError(
                f"dataset {name}: row {index} (task_id {str(row['task_id'])[:80]!r}) has {size} bytes on the wire, "
                f"expected at most {ROW_BYTES}: let the row name a file instead of holding what is in it"
            )


def load_rollout_rows(config: DataflowConfig, *, seed: int, tokenizer: Tokenizer | None) -> dict[str, list[Row]]:
    """Return the rows of all rollout datasets, by name."""
    return {
        name: load_rows(dataset, split="train", seed=seed, tokenizer=tokenizer)
        for name, dataset in config.rollout_datasets.items()
    }
