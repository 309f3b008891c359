"""Positional arguments: files and overrides, in any order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from astraflow.errors import ConfigError

_OVERRIDE = re.compile(r"\+?[A-Za-z_][\w.@-]*=.*", re.DOTALL)


def split(inputs: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return (files, overrides); what looks like `key.path=value` and is no file is an override."""
    overrides = [text for text in inputs if _OVERRIDE.fullmatch(text) and not Path(text).is_file()]
    files = [Path(text) for text in inputs if text not in overrides]
    if not files:
        raise ConfigError("no configuration file was given; an example is examples/quickstart.yaml")
    return files, overrides
