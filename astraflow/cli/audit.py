"""`astraflow audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from astraflow.core.observability.failures import Failure, read_failures
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.audit import AuditReport, Lengths, audit
from astraflow.launch.summary import write_summary


def show(run: Path, json: Path | None) -> None:
    """Print what became of every group of a run; exit code 1 where something does not hold."""
    directory = RunDirectory.existing(run)
    report = audit(directory.ledger)
    for line in [*described(report), *_failures(read_failures(directory.failures))]:
        typer.echo(line)
    if json is not None:
        write_summary(report, json)
    if not report.conserved:
        raise typer.Exit(1)


def described(report: AuditReport) -> list[str]:
    """The report for people."""
    in_flight = sum(report.in_flight.values())
    dropped = sum(report.dropped.values())
    lines = [
        f"issued {report.issued} = trained {report.trained} + dropped {dropped} + in flight {in_flight}: "
        + ("conserved" if report.conserved else "NOT CONSERVED"),
        *(f"  problem: {problem}" for problem in report.problems),
        f"dropped: {_counts(report.dropped)}; in flight: {_counts(report.in_flight)}",
        f"trainer starts {report.starts}, versions {report.versions}",
        f"replayed on purpose: {report.replayed} places of trained batches",
        f"after a recovery {report.retrained} groups trained again, {report.rerun} run again; "
        f"lost leases {report.lost_leases}, results without a lease {report.orphans}",
        f"length of what was trained: {_lengths(report.kept_lengths)}",
    ]
    lines += [f"length of what was dropped as {name}: {_lengths(found)}" for name, found in report.lost_lengths.items()]
    shares = " ".join(f"{share:.1%}" for share in report.stale_share_by_decile)
    return [*lines, f"dropped as too old, by length decile, the shortest first: {shares or 'nothing finished'}"]


def _failures(failures: Sequence[Failure]) -> list[str]:
    """Why samples have no reward: the first sample of each kind, with its innermost frames."""
    lines = []
    for failure in failures:
        row, task = failure.place
        lines.append(f"no reward in {failure.samples} samples or more, first of row {row} (task {task}):")
        lines += [f"    {line}" for line in ": ".join(failure.why).splitlines()]
    return lines


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items()) or "none"


def _lengths(lengths: Lengths | None) -> str:
    if lengths is None:
        return "none"
    return (
        f"{lengths.groups} groups, mean {lengths.mean:.0f} tokens, "
        f"deciles 1, 5, 9: {lengths.p10:.0f}, {lengths.p50:.0f}, {lengths.p90:.0f}"
    )
