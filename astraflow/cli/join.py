"""`astraflow join`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from astraflow.launch.join import join as join_run
from astraflow.launch.local import Interrupted


def join(run: Path, name: str, overrides: Sequence[str]) -> None:
    """Serve until the run ends, the service is drained, or Ctrl-C (exit code 130 after an ordered stop)."""
    try:
        join_run(run, name, overrides, lambda text: typer.echo(text, err=True))
    except Interrupted as order:
        typer.echo(f"astraflow: stopped by {order}; {name} has left", err=True)
        raise typer.Exit(order.exit_code) from None
