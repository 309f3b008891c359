"""`traj`: segment, analyze, optimize, status, loop, wait, import, hooks, bench.

Exit codes: 0 done, 1 failed, 2 a wrong input; `traj wait` and `traj loop` exit 2 also where a wait timed out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from astraflow.core.observability import log
from astraflow.errors import AstraFlowError, ConfigError, DataError
from astraflow.evolution.skillbank.bank import BANK_FILE
from astraflow.evolution.traces.analyzer import ReportedFinding, analyse, reported
from astraflow.evolution.traces.bench import bench_hooks
from astraflow.evolution.traces.cli.loop import loop_command
from astraflow.evolution.traces.cli.optimize import optimize
from astraflow.evolution.traces.cli.options import (
    DEFAULT_BANK,
    BankOption,
    JsonFlag,
    OutputOption,
    echo_json,
    open_store,
    read_json,
    shelf_of,
)
from astraflow.evolution.traces.findings import Report, Suggestion
from astraflow.evolution.traces.hook_settings import POST_TOOL, hook_settings
from astraflow.evolution.traces.payload import LAYERS
from astraflow.evolution.traces.proposers import Context
from astraflow.evolution.traces.proposers.rule import RuleProposer
from astraflow.evolution.traces.report import render
from astraflow.evolution.traces.rounds import STALE_AFTER, Rounds, RoundStatus, WaitResult
from astraflow.evolution.traces.segmenters import segment_session
from astraflow.evolution.traces.segmenters.chain import DEFAULT_CHAIN
from astraflow.evolution.traces.shelf import SkillShelf
from astraflow.evolution.traces.transcript import import_transcript

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Recorded agent work becomes measured improvements of skills.",
)
app.add_typer(optimize, name="optimize")
app.command("loop")(loop_command)


@app.command()
def segment(
    sessions: Annotated[list[str] | None, typer.Argument(metavar="[SESSION...]", help="Default: all.")] = None,
    chain: Annotated[str, typer.Option(help="Segmenters in order, comma-separated.")] = ",".join(DEFAULT_CHAIN),
    output: OutputOption = None,
    json: JsonFlag = False,
) -> None:
    """Cut sessions into traces; earlier traces are replaced."""
    store = open_store(output)
    chosen = [store.check_session(name) for name in sessions] if sessions else store.sessions()
    counts = {name: len(segment_session(store, name, chain.split(","))) for name in chosen}
    store.rebuild_index()
    if json:
        echo_json(counts)
        return
    for name, count in counts.items():
        typer.echo(f"{name}: {count} traces")
    typer.echo(f"{len(counts)} sessions, {sum(counts.values())} traces")


@app.command()
def analyze(
    layer: Annotated[str, typer.Option(help="rllm, traj or meta.")] = "rllm",
    skill: Annotated[str | None, typer.Option(help="Only this skill's traces.")] = None,
    up_to_round: Annotated[int | None, typer.Option("--round", help="Only rounds up to this one.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the report.")] = None,
    findings: Annotated[Path | None, typer.Option(help="JSON list of findings to take into the report.")] = None,
    bank: BankOption = None,
    output: OutputOption = None,
    json: JsonFlag = False,
) -> None:
    """Write a report: problems with sessions and confidence, and what rules suggest."""
    if layer not in LAYERS:
        raise ConfigError(f"unknown layer '{layer}'; known: {', '.join(LAYERS)}")
    store = open_store(output)
    report_name = name or "_".join(
        filter(None, (skill or layer, "report" if up_to_round is None else f"round_{up_to_round}"))
    )
    report = analyse(store, layer, report_name, round_number=up_to_round, skill=skill)
    if findings:
        taken = reported(store, read_json(findings, list[ReportedFinding]))
        report = msgspec.structs.replace(report, findings=[*report.findings, *taken])
    if bank or (DEFAULT_BANK / BANK_FILE).is_file():
        report = msgspec.structs.replace(report, suggestions=_suggestions(report, shelf_of(bank)))
    path = store.write_report(layer, report.name, render(report), report)
    if json:
        echo_json(report)
    else:
        typer.echo(f"{path}: {len(report.findings)} problems, {len(report.suggestions)} suggestions")


@app.command()
def status(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Derive the index from the files first.")] = False,
    output: OutputOption = None,
    json: JsonFlag = False,
) -> None:
    """Show sessions, traces, reports and rounds."""
    store = open_store(output)
    index = store.rebuild_index() if rebuild or not store.index_path.exists() else store.index()
    rounds = Rounds(store.rounds)
    standing = {number: rounds.status(number) for number in rounds.numbers()}
    reports = sorted(str(path.relative_to(store.root)) for path in store.root.glob("*/reports/*.md"))
    if json:
        echo_json({"output": str(store.root), "sessions": index, "rounds": standing, "reports": reports})
        return
    calls, traces = sum(line.tool_calls for line in index), sum(line.traces for line in index)
    typer.echo(f"{store.root}: {len(index)} sessions, {calls} tool calls, {traces} traces")
    for number, one in standing.items():
        typer.echo(f"round {number}: {one.status.value if one else 'training'}")
    for report in reports:
        typer.echo(report)


@app.command("wait")
def wait_for_round(
    number: Annotated[int, typer.Option("--round", min=0)],
    wanted: Annotated[list[RoundStatus] | None, typer.Option("--for", help="Default: training_complete.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds.")] = 3600.0,
    stale_after: Annotated[float, typer.Option(help="Seconds without a heartbeat.")] = STALE_AFTER,
    output: OutputOption = None,
) -> None:
    """Wait for a round's status: exit code 0 reached, 1 training failed, 2 timed out or heartbeat stopped."""
    rounds = Rounds(open_store(output).rounds)
    result = rounds.wait(number, wanted or [RoundStatus.TRAINING_COMPLETE], timeout=timeout, stale_after=stale_after)
    typer.echo(f"round {number}: {result.name.lower()}")
    raise typer.Exit(result.value)


@app.command("round")
def report_round(
    number: Annotated[int, typer.Option("--round", min=0)],
    new: Annotated[RoundStatus, typer.Option("--set", help="What the round has come to.")],
    detail: Annotated[str, typer.Option()] = "",
    output: OutputOption = None,
) -> None:
    """Report a round's status by hand or from a training script of one's own."""
    Rounds(open_store(output).rounds).set_status(number, new, detail=detail)
    typer.echo(f"round {number}: {new.value}")


@app.command("import")
def import_command(
    transcript: Annotated[
        Path, typer.Argument(help="A coding agent's transcript, JSONL.", exists=True, dir_okay=False)
    ],
    session_id: Annotated[str | None, typer.Option(help="Default: the transcript's own.")] = None,
    output: OutputOption = None,
) -> None:
    """Record a finished session from its transcript file."""
    session, added = import_transcript(open_store(output), transcript, session_id)
    typer.echo(f"{session}: {added} events added")


@app.command()
def hooks() -> None:
    """Print the settings that make a coding agent call the hooks of this repository."""
    root = Path.cwd()
    if not (root / POST_TOOL).is_file():
        raise ConfigError(f"no {POST_TOOL} in {root}: run this from the repository root")
    echo_json(hook_settings(sys.executable, str(root)))


@app.command()
def bench(
    calls: Annotated[int, typer.Option(min=1, help="Calls of each writer.")] = 200,
    writers: Annotated[int, typer.Option(min=1, help="Writers at once.")] = 8,
    json: JsonFlag = False,
) -> None:
    """Measure a hook call: alone, and with several writers at once on one session."""
    results = [bench_hooks(Path(POST_TOOL), 1, calls), bench_hooks(Path(POST_TOOL), writers, calls)]
    if json:
        echo_json(results)
        return
    for one in results:
        typer.echo(
            f"{one.writers} at once: {one.valid_lines} valid lines of {one.calls} calls; "
            f"median {one.median_ms} ms, p95 {one.p95_ms} ms, max {one.max_ms} ms "
            f"(an empty Python program: median {one.python_median_ms} ms, p95 {one.python_p95_ms} ms)"
        )


def main() -> None:
    """Entry point: one line on stderr for a wrong input (exit code 2) or a failure (exit code 1)."""
    log.open_closed_streams()
    try:
        app()
    except (ConfigError, DataError) as error:
        typer.echo(f"traj: {error}", err=True)
        sys.exit(WaitResult.TIMED_OUT)
    except AstraFlowError as error:
        typer.echo(f"traj: {error}", err=True)
        sys.exit(1)


def _suggestions(report: Report, shelf: SkillShelf) -> list[Suggestion]:
    known = set(shelf.names())
    skills = sorted({finding.skill for finding in report.findings if finding.skill in known and finding.skill})
    return [one for skill in skills for one in RuleProposer().propose(Context(shelf.view(skill), report.findings))]


if __name__ == "__main__":
    main()
