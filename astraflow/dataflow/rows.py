"""Dataset rows by function: loaded, checked, and cut to length.

A dataset function is called with those of (split, tokenizer, max_length, path, offline_dir, seed and the YAML's own
keys) that it names; a key of the YAML that it does not take is an error (invariant 7).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from astraflow.core.data.trajectory import Row
from astraflow.core.dataset.registry import DATASET_REGISTRY
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.dataflow.config import DatasetConfig
from astraflow.errors import ConfigError, DataError, boundary, suggestion

log = logging.getLogger(__name__)

COLUMNS = {"messages": list, "answer": object, "task_id": str}


def load_rows(config: DatasetConfig, *, split: str, seed: int, tokenizer: Tokenizer | None) -> list[Row]:
    """Return the checked rows of a dataset.

    split, seed: used where the YAML gives none. ConfigError for a key that the function does not take; DataError naming
    the row and column that is missing or is not JSON.
    """
    function = DATASET_REGISTRY.resolve(config.dataset_fn)
    offered = {"split": split, "seed": seed, "tokenizer": tokenizer, "max_length": config.max_length}
    arguments = _arguments(function, config, offered)
    with boundary(DataError, f"dataset {config.dataset_fn}"):
        rows = list(function(**arguments))
    if not rows:
        raise DataError(f"dataset {config.dataset_fn} has no rows")
    for index, row in enumerate(rows):
        check_row(row, f"dataset {config.dataset_fn}: row {index}")
    if config.max_length is not None and tokenizer is not None and "max_length" not in arguments:
        return _short(rows, config.max_length, tokenizer, config.dataset_fn)
    return rows


def check_row(row: Any, where: str) -> None:
    """Raise DataError unless a row has messages, answer and task_id and is JSON."""
    if not isinstance(row, dict):
        raise DataError(f"{where} is a {type(row).__name__}, expected a dict")
    for column, kind in COLUMNS.items():
        if column not in row:
            raise DataError(f"{where} has no column '{column}'; it has: {', '.join(map(str, row))}")
        if not isinstance(row[column], kind):
            raise DataError(f"{where}: column '{column}' is a {type(row[column]).__name__}, expected {kind.__name__}")
    for message in row["messages"]:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise DataError(f"{where}: column 'messages' holds {message!r}, expected {{role, content}}")
    try:
        msgspec.json.encode(row)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} is not JSON: {error}") from error


def _arguments(function: Callable[..., Any], config: DatasetConfig, offered: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    unknown = sorted(config.keywords.keys() - parameters.keys())
    if unknown and not takes_any:
        raise ConfigError(
            f"{config.dataset_fn} takes no '{unknown[0]}'{suggestion(unknown[0], list(parameters))}; "
            f"it takes: {', '.join(parameters)}"
        )
    return {**{name: value for name, value in offered.items() if name in parameters}, **config.keywords}


def _short(rows: Sequence[Row], max_length: int, tokenizer: Tokenizer, name: str) -> list[Row]:
    kept = [row for row in rows if len(tokenizer.encode_chat(row["messages"])) <= max_length]
    log.info(
        "dataset %s: %d of %d rows have a prompt over %d tokens", name, len(rows) - len(kept), len(rows), max_length
    )
    if not kept:
        raise DataError(f"dataset {name}: every prompt has more than {max_length} tokens")
    return kept
