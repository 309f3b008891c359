"""`astraflow replay`."""

from __future__ import annotations

import logging
from pathlib import Path

import typer

from astraflow.dataflow.simulation.replay import replay_run


def replay(run: Path) -> None:
    """Print each batch that was derived again, and the first difference; exit code 1 where there is one."""
    logging.getLogger("astraflow.dataflow").setLevel(logging.CRITICAL + 1)
    replayed = replay_run(run)
    for number, batch in enumerate(replayed.batches, 1):
        typer.echo(f"batch {number}: {batch.model_id} after version {batch.version}, {batch.digest}")
    typer.echo(
        f"{len(replayed.batches)} batches derived again, bit for bit; "
        f"{replayed.followed:,} of {replayed.records:,} records of the log made again"
    )
    if replayed.difference is not None:
        typer.echo(f"difference at {replayed.difference}", err=True)
        raise typer.Exit(1)
