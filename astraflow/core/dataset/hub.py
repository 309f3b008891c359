"""Rows of datasets on the Hugging Face Hub, from its cache where there is no network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from astraflow.errors import ConfigError, boundary

try:
    from datasets import disable_progress_bars, load_dataset
except ImportError as error:
    raise ConfigError("datasets by their name on the Hub need an extra: pip install 'astraflow[hub]'") from error


def read_hub(name: str, subset: str, split: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of `owner/name`; ConfigError where it can neither be fetched nor is in the Hub's cache."""
    disable_progress_bars()
    with boundary(
        ConfigError, f"dataset {name} can neither be fetched nor is it in the Hub's cache (give a local file)"
    ):
        rows = load_dataset(name, subset, split=split)
    yield from rows
