"""Checkpoints in Hugging Face layout: a directory is whole or absent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from astraflow.core.model import Decoder, save_model
from astraflow.core.text.tokenizer import Tokenizer


def save_checkpoint(directory: Path, decoder: Decoder, tokenizer: Tokenizer) -> Path:
    """Write model and tokenizer to `directory`; readers never see half of it, and one that was there is replaced."""
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    save_model(draft, decoder, decoder.config)
    tokenizer.save(draft)
    shutil.rmtree(directory, ignore_errors=True)
    draft.replace(directory)
    return directory
