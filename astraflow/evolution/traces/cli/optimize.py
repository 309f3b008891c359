"""`traj optimize`: a patch's life, one command a step."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from astraflow.errors import ConfigError
from astraflow.evolution.skillbank import PatchStatus
from astraflow.evolution.traces.analyzer import analyse
from astraflow.evolution.traces.cli.agents import AgentKind, AgentOption, EndpointOption, ModelOption, agent_of, ask_of
from astraflow.evolution.traces.cli.options import (
    BankOption,
    JsonFlag,
    OutputOption,
    ScoreCommandOption,
    SkillOption,
    echo_json,
    open_store,
    read_json,
    read_tasks,
    shelf_of,
)
from astraflow.evolution.traces.findings import Report, Suggestion
from astraflow.evolution.traces.optimizer import Optimizer, RefusedError, Threshold
from astraflow.evolution.traces.payload import layer_of
from astraflow.evolution.traces.practice.agents import Agent
from astraflow.evolution.traces.practice.desk import Case
from astraflow.evolution.traces.practice.episodes import measure
from astraflow.evolution.traces.proposers import PROPOSERS, Context
from astraflow.evolution.traces.scoring import command_score

optimize = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Turn suggestions into measured patches.")

PatchArgument = Annotated[str, typer.Argument(metavar="PATCH", help="The patch's id.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept with the patch.")]
MinEffect = Annotated[float, typer.Option(min=0, help="Least mean gain on held-out cases.")]
MaxPValue = Annotated[float, typer.Option(min=0, max=1, help="Most chance that the gain is luck.")]
_DEFAULT = Threshold()


@optimize.command()
def propose(
    skill: SkillOption,
    proposer: Annotated[str, typer.Option(help="rule, reflect, playbook, or module:Class.")] = "rule",
    suggestion: Annotated[Path | None, typer.Option(help="JSON file with one suggestion of your own.")] = None,
    report: Annotated[Path | None, typer.Option(help="A report's JSON file. Default: analyse anew.")] = None,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    bank: BankOption = None,
    output: OutputOption = None,
) -> None:
    """Write suggestions as patch files with status proposed; refused ones are named, exit code 1 if all are."""
    optimizer = Optimizer(open_store(output), shelf_of(bank))
    if suggestion:
        suggestions = [read_json(suggestion, Suggestion)]
    else:
        layer = layer_of(skill)
        read = read_json(report, Report) if report else analyse(optimizer.store, layer, "proposal", skill=skill)
        context = Context(
            view=optimizer.shelf.view(skill),
            findings=read.findings,
            traces=optimizer.store.traces(layer),
            ask=ask_of(endpoint, model),
            folder=optimizer.store.root,
        )
        suggestions = PROPOSERS.resolve(proposer)().propose(context)
    refused = 0
    for one in suggestions:
        try:
            patch = optimizer.propose(one)
            typer.echo(f"{patch.id} {patch.status}: {patch.file}")
        except RefusedError as refusal:
            refused += 1
            typer.echo(f"refused: {refusal}", err=True)
    if not suggestions:
        typer.echo("nothing to propose")
    if refused and refused == len(suggestions):
        raise typer.Exit(1)


@optimize.command()
def evaluate(
    patch: PatchArgument,
    skill: SkillOption,
    tasks: Annotated[Path | None, typer.Option(help="Task file; its held_out cases are used.")] = None,
    score_command: ScoreCommandOption = None,
    agent: AgentOption = AgentKind.SCRIPTED,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each case.")] = 3,
    seed: int = 0,
    bank: BankOption = None,
    output: OutputOption = None,
    json: JsonFlag = False,
) -> None:
    """Score the skill without and with a patch on the same held-out cases."""
    if (tasks is None) == (score_command is None):
        raise ConfigError("give either --tasks or --score-command")
    if score_command:
        score = command_score(score_command)
    elif tasks:
        score = partial(_scores, agent_of(agent, endpoint, model), read_tasks(tasks).held_out, seed, repeats)
    optimizer = Optimizer(open_store(output), shelf_of(bank))
    measured = optimizer.evaluate(skill, patch, score)
    if json:
        echo_json(measured)
    else:
        comparison = measured.comparison
        typer.echo(
            f"{patch}: effect {comparison.effect:+.3f} on {len(comparison.before)} cases, p {comparison.p_value:.3g}"
        )


@optimize.command()
def accept(
    patch: PatchArgument,
    skill: SkillOption,
    min_effect: MinEffect = _DEFAULT.min_effect,
    max_p_value: MaxPValue = _DEFAULT.max_p_value,
    force: Annotated[bool, typer.Option("--force", help="Accept without the effect; needs --reason.")] = False,
    reason: ReasonOption = "",
    bank: BankOption = None,
    output: OutputOption = None,
) -> None:
    """Activate an evaluated patch that has the effect, and compile its skill."""
    if force and not reason.strip():
        raise ConfigError("--force needs a --reason")
    optimizer = Optimizer(open_store(output), shelf_of(bank))
    written = optimizer.accept(skill, patch, Threshold(min_effect, max_p_value), reason if force else None)
    typer.echo(f"{patch} accepted: {written}")


@optimize.command()
def decide(
    patch: PatchArgument,
    skill: SkillOption,
    min_effect: MinEffect = _DEFAULT.min_effect,
    max_p_value: MaxPValue = _DEFAULT.max_p_value,
    bank: BankOption = None,
    output: OutputOption = None,
) -> None:
    """Accept an evaluated patch that has the effect, reject one that has not."""
    optimizer = Optimizer(open_store(output), shelf_of(bank))
    status = optimizer.decide(skill, patch, Threshold(min_effect, max_p_value))
    reason = optimizer.record(skill, patch).history[-1].reason
    typer.echo(f"{patch} {status}: {reason}")


@optimize.command()
def reject(
    patch: PatchArgument, skill: SkillOption, reason: ReasonOption, bank: BankOption = None, output: OutputOption = None
) -> None:
    """Reject a patch; the compiled skill stays as it is."""
    Optimizer(open_store(output), shelf_of(bank)).reject(skill, patch, reason)
    typer.echo(f"{patch} rejected")


@optimize.command()
def rollback(
    patch: PatchArgument, skill: SkillOption, reason: ReasonOption, bank: BankOption = None, output: OutputOption = None
) -> None:
    """Take an accepted patch out of its skill again, compile, and archive the patch."""
    written = Optimizer(open_store(output), shelf_of(bank)).roll_back(skill, patch, reason)
    typer.echo(f"{patch} archived: {written}")


@optimize.command()
def archive(
    patch: PatchArgument, skill: SkillOption, reason: ReasonOption, bank: BankOption = None, output: OutputOption = None
) -> None:
    """Put a rejected patch away."""
    Optimizer(open_store(output), shelf_of(bank)).archive(skill, patch, reason)
    typer.echo(f"{patch} archived")


@optimize.command("list")
def list_patches(
    skill: Annotated[str | None, typer.Option("--skill", help="Default: every skill.")] = None,
    status: Annotated[PatchStatus | None, typer.Option(help="Only patches with this status.")] = None,
    bank: BankOption = None,
    output: OutputOption = None,
    json: JsonFlag = False,
) -> None:
    """Show patches with their status and what was measured."""
    optimizer = Optimizer(open_store(output), shelf_of(bank))
    found = [
        (name, patch, optimizer.record(name, patch.id))
        for name in ([skill] if skill else optimizer.shelf.names())
        for patch in optimizer.shelf.patches(name)
        if status is None or patch.status is status
    ]
    if json:
        echo_json([{"status": str(patch.status), **msgspec.to_builtins(record)} for _, patch, record in found])
        return
    for name, patch, record in found:
        effect = f" effect {record.measurement.comparison.effect:+.3f}" if record.measurement else ""
        typer.echo(f"{name} {patch.id} {patch.status}{effect}: {patch.description}")


def _scores(agent: Agent, cases: list[Case], seed: int, repeats: int, text: str) -> dict[str, float]:
    return measure(agent, text, cases, seed, repeats)
