"""`astraflow report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from astraflow.dashboard.report import write_report


def report(runs: Sequence[Path], output: Path | None) -> None:
    """Print where the page is."""
    typer.echo(write_report(runs, output))
