"""Run directories → one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from astraflow.core.observability.lines import write_whole
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dashboard.page import comparison_page, run_page
from astraflow.dashboard.recording import read_recording
from astraflow.errors import ConfigError, DataError

COMPARISON = "comparison.html"


def write_report(run_dirs: Sequence[Path], output: Path | None = None) -> Path:
    """Write the page of one run, or that which compares several, and return its path.

    Without `output` one run's page is its report.html, that of several is comparison.html in the working directory.
    ConfigError where a directory is no run; DataError where the file cannot be written.
    """
    if not run_dirs:
        raise ConfigError("a report needs at least one run directory")
    runs = [read_recording(path) for path in run_dirs]
    if output is None:
        output = RunDirectory(run_dirs[0], create=False).report if len(runs) == 1 else Path(COMPARISON)
    text = run_page(runs[0]) if len(runs) == 1 else comparison_page(runs)
    try:
        write_whole(output, text.encode())
    except OSError as error:
        raise DataError(f"the report cannot be written to {output}: {error.strerror}") from error
    return output
