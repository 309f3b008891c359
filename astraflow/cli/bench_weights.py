"""`astraflow bench weights`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer

from astraflow.core.weight_manager.bench.measure import measure_all
from astraflow.errors import ConfigError
from astraflow.train_worker.bench_trajectory import measure


def bench_weights(model: str, densities: str, megabytes: int, json: Path | None) -> None:
    """Print a line per figure; with `json`, write all of them."""
    results = measure_all(megabytes * 10**6, parse_densities(densities), typer.echo)
    results["trajectories"] = {"model": model, "steps": measure(model, typer.echo)}
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")


def parse_densities(text: str) -> list[float]:
    """ "0.4,1" (percent) → [0.004, 0.01]."""
    try:
        densities = [float(part) / 100 for part in text.split(",")]
    except ValueError:
        densities = []
    if not densities or not all(0 < density < 1 for density in densities):
        raise ConfigError(f"--density {text}: expected percentages between 0 and 100, as 0.4,1")
    return densities
