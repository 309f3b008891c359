"""`astraflow bench async`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from astraflow.cli.inputs import split
from astraflow.errors import ConfigError
from astraflow.launch.bench_async import bench
from astraflow.launch.check import load_config
from astraflow.launch.local import Interrupted
from astraflow.launch.run import run
from astraflow.launch.summary import write_summary
from astraflow.launch.view import PlainView


def bench_async(inputs: Sequence[str], seeds: str, json: Path | None) -> None:
    """Print a line per arm and the ratios; with `json`, write everything that was measured."""
    config = load_config(*split(inputs))
    view = PlainView(sys.stderr)
    try:
        result = bench(config, parse_seeds(seeds), lambda arm: run(arm, view), typer.echo)
    except Interrupted as order:
        raise typer.Exit(order.exit_code) from None
    for name, ratio in result.ratios.items():
        typer.echo(
            f"{name}: {ratio:.2f}x steps/min; final accuracies overlap: {result.accuracy_intervals_overlap[name]}"
        )
    typer.echo(f"max_concurrent {result.max_concurrent} groups, {result.groups_per_step} groups a step")
    if json is not None:
        write_summary(result, json)


def parse_seeds(text: str) -> list[int]:
    """ "1,2,3" → [1, 2, 3]."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise ConfigError(f"--seeds {text}: expected whole numbers, as 1,2,3")
    return [int(part) for part in parts]
