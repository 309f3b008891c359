"""`astraflow eval`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from astraflow.launch.check import load_config
from astraflow.launch.evaluation import evaluate as score
from astraflow.launch.local import Interrupted
from astraflow.launch.summary import write_summary
from astraflow.launch.view import terminal_view


def evaluate(checkpoint: Path, files: Sequence[Path], overrides: Sequence[str], json: Path | None) -> None:
    """Print a line per dataset; with `json`, write the results in the protocol's form (percent)."""
    config = load_config(files, overrides, checkpoint=checkpoint)
    view = terminal_view()
    try:
        results = score(config, view)
    except Interrupted as order:
        view.close()
        typer.echo(f"astraflow: stopped by {order}; everything has ended", err=True)
        raise typer.Exit(order.exit_code) from None
    finally:
        view.close()
    for name, dataset in results.datasets.items():
        intervals = (dataset.avg_at_k_interval, dataset.pass_at_k_interval)
        average, passed = (f"[{low:.1f}, {high:.1f}]" for low, high in intervals)
        greedy = "" if dataset.greedy is None else f", greedy {dataset.greedy:.1f}%"
        typer.echo(
            f"{name}: avg@{dataset.sample_count // dataset.total} {dataset.avg_at_k:.1f}% {average}, "
            f"pass@{dataset.k} {dataset.pass_at_k:.1f}% {passed}{greedy}, {dataset.total} problems"
        )
    if json is not None:
        write_summary(results, json)
