"""The `skill-bank` command, which `skill-bank/compile.py` runs too.

Exit codes: 0 done; 1 something is wrong with the bank, a skill or a package (each problem named on standard error, or
in `errors` with `--json`); 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from astraflow.evolution.skillbank.answer import Answer
from astraflow.evolution.skillbank.arguments import parse
from astraflow.evolution.skillbank.bank import Bank, find_bank
from astraflow.evolution.skillbank.package_commands import (
    list_command,
    package_command,
    select_command,
    smoke_command,
    verify_command,
)
from astraflow.evolution.skillbank.problem import Problem, SkillBankError, of_system
from astraflow.evolution.skillbank.skill_commands import (
    compile_command,
    diff_command,
    explain_command,
    squash_command,
    status_command,
    validate_command,
)

COMMANDS: dict[str, Callable[[Bank, argparse.Namespace], Answer]] = {
    "compile": compile_command,
    "diff": diff_command,
    "status": status_command,
    "explain": explain_command,
    "squash": squash_command,
    "validate": validate_command,
    "list_packages": list_command,
    "smoke_test": smoke_command,
    "verify": verify_command,
    "select": select_command,
    "package": package_command,
}


def main(argv: Sequence[str] | None = None, bank: Path | None = None) -> int:
    """Run one command. `bank` is the default for `--bank`; without it the nearest bank is taken."""
    command, options = parse(argv)
    try:
        root = Path(options.bank) if options.bank else bank or find_bank(Path.cwd())
        answer = COMMANDS[command](Bank.load(root), options)
    except SkillBankError as error:
        answer = _failed(command, error.problems)
    except OSError as error:
        answer = _failed(command, (of_system(error),))
    try:
        _say(answer, options.json)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader has seen enough (`| head`); the interpreter's own flush at exit must not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1 if answer.errors else 0


def _failed(command: str, problems: Sequence[Problem]) -> Answer:
    return Answer(values={"command": command.replace("_", "-")}, errors=problems)


def _say(answer: Answer, as_json: bool) -> None:
    if as_json or answer.document is not None:
        sys.stdout.write(f"{json.dumps(answer.as_json(), indent=2, ensure_ascii=False)}\n")
        return
    sys.stdout.writelines(f"{line}\n" for line in answer.lines)
    sys.stderr.writelines(f"warning: {_from_here(problem)}\n" for problem in answer.warnings)
    sys.stderr.writelines(f"error: {_from_here(problem)}\n" for problem in answer.errors)


def _from_here(problem: Problem) -> Problem:
    """The problem with its file as seen from the working directory, where it is below that."""
    here = Path.cwd()
    if problem.file is None or not problem.file.is_relative_to(here):
        return problem
    return replace(problem, file=problem.file.relative_to(here))


if __name__ == "__main__":
    sys.exit(main())
