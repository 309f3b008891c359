"""`traj loop`: play rounds, in one process or as one of two."""

from __future__ import annotations

import shlex
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from astraflow.errors import ConfigError
from astraflow.evolution.traces.cli.agents import AgentKind, AgentOption, EndpointOption, ModelOption, agent_of, ask_of
from astraflow.evolution.traces.cli.options import BankOption, OutputOption, ScoreCommandOption, open_store, read_tasks
from astraflow.evolution.traces.loop import Loop, LoopSettings, OnFailure
from astraflow.evolution.traces.optimizer import Optimizer, Threshold
from astraflow.evolution.traces.rounds import STALE_AFTER
from astraflow.evolution.traces.scoring import command_score
from astraflow.evolution.traces.shelf import SkillShelf
from astraflow.evolution.traces.store import TraceStore

PRACTICE = Path("traj_opt") / "practice"
PRACTICE_SKILL = "rllm-desk"


class Role(StrEnum):
    """Which part of a loop this process plays."""

    BOTH = "both"
    TRAINER = "trainer"
    OPTIMIZER = "optimizer"


def loop_command(
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds.")],
    first_round: Annotated[int, typer.Option("--from", min=0, help="Number of the first one.")] = 1,
    role: Annotated[Role, typer.Option(help="What this process does.")] = Role.BOTH,
    skill: Annotated[str, typer.Option(help="The skill that is improved.")] = PRACTICE_SKILL,
    tasks: Annotated[Path | None, typer.Option(help=f"Task file. Default: {PRACTICE}/tasks.json.")] = None,
    bank: BankOption = None,
    agent: AgentOption = AgentKind.SCRIPTED,
    endpoint: EndpointOption = None,
    model: ModelOption = None,
    proposers: Annotated[str, typer.Option(help="Of rule, reflect, pareto, playbook; comma-separated.")] = "rule",
    train_command: Annotated[str | None, typer.Option(help="Trains instead; {round} is the round's number.")] = None,
    score_command: ScoreCommandOption = None,
    on_failure: Annotated[OnFailure, typer.Option(help="After a failed training.")] = OnFailure.STOP,
    retries: Annotated[int, typer.Option(min=0, help="With --on-failure retry.")] = 2,
    min_effect: Annotated[
        float, typer.Option(min=0, help="Least mean gain of an accepted patch.")
    ] = Threshold.min_effect,
    max_p_value: Annotated[float, typer.Option(min=0, max=1, help="Most chance of luck.")] = Threshold.max_p_value,
    patches: Annotated[int, typer.Option(min=1, help="Accepted in a round at most.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each held-out case.")] = 3,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the other side.")] = 3600.0,
    stale_after: Annotated[float, typer.Option(help="Seconds without its heartbeat.")] = STALE_AFTER,
    seed: int = 0,
    output: OutputOption = None,
) -> None:
    """Work, learn, measure, improve: without --bank and --tasks on a practice task, in copies of its files."""
    store = open_store(output)
    settings = LoopSettings(
        skill=skill,
        rounds=rounds,
        first_round=first_round,
        seed=seed,
        repeats=repeats,
        patches_a_round=patches,
        proposers=proposers.split(","),
        threshold=Threshold(min_effect, max_p_value),
        on_failure=on_failure,
        retries=retries,
        timeout=timeout,
        stale_after=stale_after,
        train_command=shlex.split(train_command or ""),
    )
    loop = Loop(
        Optimizer(store, SkillShelf(bank or practice_bank(store))),
        read_tasks(tasks or PRACTICE / "tasks.json"),
        agent_of(agent, endpoint, model),
        settings,
        ask=ask_of(endpoint, model),
        score=command_score(score_command) if score_command else None,
        say=typer.echo,
    )
    done = {Role.BOTH: loop.both, Role.TRAINER: loop.trainer, Role.OPTIMIZER: loop.optimizer}[role]()
    typer.echo(f"rounds {first_round} to {first_round + rounds - 1}: {done.name.lower()}")
    raise typer.Exit(done.value)


def practice_bank(store: TraceStore) -> Path:
    """A copy of the practice skill bank, made on first use, so that a loop changes no tracked file."""
    copy = store.root / "practice" / "skill-bank"
    with store.locked("practice"):
        if not copy.exists():
            source = PRACTICE / "skill-bank"
            if not source.is_dir():
                raise ConfigError(f"no {source} here: run this from the repository root, or name --bank and --tasks")
            draft = copy.with_name("skill-bank.draft")
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(source, draft)
            draft.rename(copy)
    return copy
