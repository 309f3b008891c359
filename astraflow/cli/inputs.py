"""Positional arguments: files and overrides, in any order."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from astraflow.errors import ConfigError

_OVERRIDE = re.compile(r"\+?[A-Za-z_][\w.@-]*=.*", re.DOTALL)


def split(inputs: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return (files, overrides); what looks like `key.path=value` and is no file is an override."""
    # isfile: Path.is_file raises for what is too long to be a name
    overrides = [text for text in inputs if _OVERRIDE.fullmatch(text) and not os.path.isfile(text)]
    files = [Path(text) for text in inputs if text not in overrides]
    if not files:
        raise ConfigError("no configuration file was given; an example is examples/quickstart.yaml")
    return files, overrides


def writable(path: Path | None) -> Path | None:
    """Return where results are to be written. ConfigError where they cannot be: said before the work, not after it."""
    if path is not None:
        there = os.path.exists(path)
        try:
            path.open("ab").close()
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        if not there:
            path.unlink()
    return path
