"""`astraflow doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer

from astraflow.cli.inputs import split
from astraflow.errors import ConfigError
from astraflow.launch.doctor import Finding, Machine, Severity, examine


def doctor(inputs: Sequence[str], answers: Sequence[str], json: Path | None) -> None:
    """Print what was found; exit code 1 where something is an error."""
    for answer in answers:
        if "{answer}" not in answer:
            raise ConfigError(f"--answer '{answer}': expected {{answer}} in it, as 'Result: {{answer}}'")
    files, overrides = split(inputs) if inputs else ([], [])
    found = examine(files, overrides, here=Machine.here(), phrasings=answers)
    for finding in found:
        typer.echo(str(finding))
    typer.echo(summary(found))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode({"findings": found}), indent=1) + b"\n")
    if any(finding.severity is Severity.ERROR for finding in found):
        raise typer.Exit(1)


def summary(found: Sequence[Finding]) -> str:
    """The last line."""
    counts = {severity: sum(f.severity is severity for f in found) for severity in (Severity.ERROR, Severity.WARNING)}
    return ", ".join(f"{count} {severity}{'s' if count != 1 else ''}" for severity, count in counts.items())
