"""`astraflow config`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from astraflow.cli.inputs import split
from astraflow.launch.config import load_config_tree
from astraflow.launch.explain import annotated, difference, schema
from astraflow.launch.explain import explain as explained


def explain(key: str, inputs: Sequence[str]) -> None:
    """Print each key that `key` means."""
    files, overrides = split(inputs) if inputs else ([], [])
    typer.echo("\n\n".join(map(str, explained(key, files, overrides))))


def show(inputs: Sequence[str]) -> None:
    """Print the resolved configuration with where each key was set."""
    typer.echo(annotated(*load_config_tree(*split(inputs))))


def print_schema() -> None:
    """Print the JSON schema."""
    typer.echo(json.dumps(schema(), indent=2, ensure_ascii=False))


def diff(first: Path, second: Path) -> None:
    """Print the keys that differ."""
    typer.echo("\n".join(difference(first, second)) or "no difference")
