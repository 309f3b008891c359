"""Models on the Hugging Face Hub, from its cache where there is no network."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download

from astraflow.errors import ConfigError, boundary

FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")
"""What is fetched: weights in one format only, and no code."""


def fetch_model(name: str) -> Path:
    """Return the local directory of `owner/name`; ConfigError where it can neither be fetched nor is cached."""
    with boundary(ConfigError, f"there is no directory {name}, and the Hub's model of that name cannot be had"):
        path = Path(snapshot_download(name, allow_patterns=list(FILES)))
    for file in ("config.json", "tokenizer.json"):
        if not (path / file).is_file():
            raise ConfigError(f"the Hub's model {name} has no {file}")
    return path
