"""`astraflow weights verify` and `astraflow inspect version`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import typer

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.weight_manager.provenance import ModelHistory, changed_tensors, history, verify
from astraflow.core.weight_manager.version_log import PublishedVersion
from astraflow.errors import ConfigError

SHOWN = 20
"""Lines of one kind that are printed; the rest is counted."""


def verify_run(run: Path) -> None:
    """Say what was checked and what is wrong; exit code 1 where anything is."""
    result = verify(RunDirectory.existing(run).root)
    typer.echo(f"{result.versions} versions published, {result.served} times proven by an engine")
    typer.echo(f"{result.tokens} sampled tokens kept, {result.quarantined} samples quarantined")
    for name, version in result.checkpoints.items():
        known = "none that is known, or not comparable" if version is None else f"version {version}"
        typer.echo(f"checkpoint {name}: {known}")
    for problem in result.problems[:SHOWN]:
        typer.echo(f"wrong: {problem}")
    if len(result.problems) > SHOWN:
        typer.echo(f"… and {len(result.problems) - SHOWN} more")
    if result.problems:
        raise typer.Exit(1)
    typer.echo("everything resolves")


def inspect_version(number: int, run: Path, model_id: str | None) -> None:
    """Print what is known about a version."""
    models = history(RunDirectory.existing(run).root)
    if model_id is not None and model_id not in models:
        raise ConfigError(f"{run} has no model {model_id}; it has {', '.join(sorted(models))}")
    found = [
        (model, version)
        for name, model in models.items()
        for version in model.published
        if version.version == number and model_id in (None, name)
    ]
    if not found:
        spans = "; ".join(f"{name}: {_span(model)}" for name, model in sorted(models.items()))
        raise ConfigError(f"{run} has no version {number}; {spans}")
    for model, version in found:
        _print(model, version)


def _print(model: ModelHistory, version: PublishedVersion) -> None:
    when = datetime.fromtimestamp(version.time, UTC)
    typer.echo(f"version {version.version} of {version.model_id}, published {when:%Y-%m-%d %H:%M:%S} UTC")
    typer.echo(f"digest {version.digest}, {version.bytes:,} bytes, {len(version.tensors)} tensors")
    changed = changed_tensors(model, version)
    if changed is not None:
        typer.echo(f"{len(changed)} tensors changed since the version before")
    for one in model.served.get(version.version, []):
        seconds = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in one.timing.items())
        canaries = "" if one.canary_gap is None else f", canaries off by {one.canary_gap:.2g} nats"
        typer.echo(f"served by {one.raas}: {one.mode}, {one.bytes:,} bytes, {seconds}{canaries}")
    for alarm in model.alarms:
        if alarm.version == version.version:
            typer.echo(f"alarm of {alarm.raas}: {alarm.reason}")
    for (name, shape, dtype, aliases), digest in zip(
        model.catalogues[version.version].tensors, version.tensors, strict=True
    ):
        mark = "*" if changed and name in changed else " "
        also = f" = {', '.join(aliases)}" if aliases else ""
        typer.echo(f"{mark} {digest} {dtype} {list(shape)} {name}{also}")


def _span(model: ModelHistory) -> str:
    numbers = [version.version for version in model.published]
    return f"{min(numbers)} to {max(numbers)}" if numbers else "none"
