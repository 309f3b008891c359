"""The model that a run starts from, made by supervised fine-tuning once per configuration and code version."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.launch.cache import cache_root, make_model
from astraflow.launch.config import RunConfig
from astraflow.launch.specs import sft_spec
from astraflow.train_worker.config import SFTConfig

_CODE = ("core/data", "core/dataset", "core/model", "core/text", "train_worker")
"""What decides the weights that come out, under the package."""


def ensure_base_model(config: RunConfig, run_dir: RunDirectory, progress: Callable[[str], None]) -> Path | None:
    """Return the base model's directory, making it first where the cache lacks it; None without a base_model section.

    `progress` gets each new line of the process's log. PeerError with its last lines where it fails.
    """
    if config.base_model is None:
        return None
    path = cache_path(config.base_model)
    if path.is_dir():
        progress(f"base model from cache: {path}")
        return path
    progress(f"making the base model ({config.base_model.preset}, {config.base_model.total_train_steps} steps)")
    make_model(path, partial(sft_spec, config, run_dir), run_dir, progress)
    return path


def cache_path(config: SFTConfig) -> Path:
    """Where the model of this configuration, made by this code, is cached."""
    return cache_root() / "base" / fingerprint(config)


def fingerprint(config: SFTConfig, package: Path = Path(__file__).parents[1]) -> str:
    """Hash of the configuration and of the sources that make a model of it, 16 hexadecimal digits."""
    digest = hashlib.sha256(config.model_dump_json().encode())
    for folder in _CODE:
        for source in sorted((package / folder).rglob("*.py")):
            digest.update(f"\n{source.relative_to(package)}\n".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
