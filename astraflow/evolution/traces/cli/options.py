"""Options that several `traj` commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from astraflow.errors import ConfigError
from astraflow.evolution.skillbank.bank import BANK_FILE
from astraflow.evolution.traces.practice.desk import Tasks
from astraflow.evolution.traces.shelf import SkillShelf
from astraflow.evolution.traces.store import TraceStore, default_root

T = TypeVar("T")

DEFAULT_BANK = Path("skill-bank")

OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Default: $TRAJ_OPT_OUTPUT, else traj_opt/output.")
]
BankOption = Annotated[Path | None, typer.Option("--bank", metavar="DIR", help="The skill bank. Default: skill-bank.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ScoreCommandOption = Annotated[
    str | None,
    typer.Option(help="Scores in place of the task file: given {skill_file}, prints a JSON object of case → score."),
]
SkillOption = Annotated[str, typer.Option("--skill", help="The skill, for example rllm-train.")]


def open_store(output: Path | None) -> TraceStore:
    return TraceStore(output or default_root())


def shelf_of(bank: Path | None) -> SkillShelf:
    """The named bank, else that of the working directory; ConfigError where there is none."""
    root = bank or DEFAULT_BANK
    if not (root / BANK_FILE).is_file():
        raise ConfigError(f"no {BANK_FILE} in {root}: name the skill bank with --bank")
    return SkillShelf(root)


def read_json(path: Path, kind: type[T]) -> T:
    """A JSON file of a known kind; ConfigError says what is wrong with it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def read_tasks(path: Path) -> Tasks:
    """A task file, checked."""
    tasks = read_json(path, Tasks)
    tasks.check()
    return tasks


def echo_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
