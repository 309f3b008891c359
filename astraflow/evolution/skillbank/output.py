"""Compiled skills become files: one result a skill, a failure of one never touches another.

Invariant: a SKILL.md that somebody edited by hand is not overwritten without `force`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.compiler import Compiled, compile_skill
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError, of_system
from astraflow.evolution.skillbank.snapshots import latest_snapshot, record, was_compiled
from astraflow.evolution.skillbank.text_file import locked, read_text, write_atomically


class FileState(StrEnum):
    """How a compiled file stands to its sources and to what the compiler wrote last."""

    CURRENT = "current"
    """It is what the sources say."""
    STALE = "stale"
    """The compiler wrote it; the sources have changed since."""
    MISSING = "missing"
    """It was not written yet."""
    HAND_EDITED = "hand_edited"
    """Somebody else wrote it, or changed it."""


class Outcome(StrEnum):
    """What became of a skill that was to be compiled."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    HAND_EDITED = "hand_edited"
    """Refused: see `FileState.HAND_EDITED`."""
    FAILED = "failed"
    """The sources do not compile; the file is untouched."""


@dataclass(frozen=True)
class SkillResult:
    """What became of one skill."""

    skill: str
    outcome: Outcome
    file: Path | None
    compiled: Compiled | None
    problems: tuple[Problem, ...] = ()
    """Empty unless the skill failed or was refused."""

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What the compiler warned about."""
        return self.compiled.warnings if self.compiled else ()


@dataclass(frozen=True)
class WriteReport:
    """What became of all skills of one call."""

    results: tuple[SkillResult, ...]
    snapshot: str
    """The latest snapshot's name, `v000` without one."""
    new_snapshot: bool

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All that went wrong."""
        return tuple(problem for result in self.results for problem in result.problems)


def write_skills(
    bank: Bank,
    names: Sequence[str],
    profile: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    where_defined: bool = False,
) -> WriteReport:
    """Compile skills and write those that differ, then one snapshot if anything does.

    With `where_defined` a skill without that profile is compiled plainly; otherwise it fails.
    """
    with nullcontext() if dry_run else locked(bank.root):
        return _write_all(bank, names, profile, force, dry_run, where_defined)


def has_profile(bank: Bank, name: str, profile: str | None) -> bool:
    """Does a skill define this profile? One whose manifest cannot be read does not: compiling it says why."""
    try:
        return profile in bank.source(name).manifest.profiles
    except SkillBankError:
        return False


def file_state(bank: Bank, compiled: Compiled, file: Path) -> FileState:
    """How the file at `file` stands to a compiled skill."""
    if not file.exists():
        return FileState.MISSING
    content = file.read_bytes()
    if content == compiled.text.encode():
        return FileState.CURRENT
    return FileState.STALE if was_compiled(bank, compiled.skill, content) else FileState.HAND_EDITED


def diff(bank: Bank, name: str, profile: str | None = None) -> str:
    """A unified diff from the file as it is to what would be written; empty if they are the same."""
    compiled = compile_skill(bank, name, profile)
    file = bank.output_file(name)
    current = read_text(file) if file.exists() else ""
    return "".join(
        difflib.unified_diff(
            current.splitlines(keepends=True),
            compiled.text.splitlines(keepends=True),
            fromfile=bank.entry(name).output if current else "/dev/null",
            tofile=f"{name} (compiled)",
        )
    )


def _write_all(
    bank: Bank, names: Sequence[str], profile: str | None, force: bool, dry_run: bool, where_defined: bool
) -> WriteReport:
    before = latest_snapshot(bank)
    profiles = {name: profile if not where_defined or has_profile(bank, name, profile) else None for name in names}
    planned = [_plan(bank, name, profiles[name], force) for name in profiles]
    if dry_run:
        return WriteReport(tuple(planned), before.name, False)
    # the record comes first: after a crash in between, what is on disk is still known to be the compiler's
    after = record(
        bank,
        {
            result.skill: result.compiled.text
            for result in planned
            if result.compiled is not None and result.outcome in (Outcome.WRITTEN, Outcome.UNCHANGED)
        },
    )
    results = tuple(_write(result) if result.outcome is Outcome.WRITTEN else result for result in planned)
    return WriteReport(results, after.name, after.number != before.number)


def _plan(bank: Bank, name: str, profile: str | None, force: bool) -> SkillResult:
    """What is to become of a skill; nothing is written."""
    try:
        file = bank.output_file(name)
        compiled = compile_skill(bank, name, profile)
        state = file_state(bank, compiled, file)
    except SkillBankError as error:
        return SkillResult(name, Outcome.FAILED, None, None, error.problems)
    except OSError as error:
        return _failed(name, error)
    if state is FileState.HAND_EDITED and not force:
        message = (
            f"skill '{name}' was edited by hand and is not overwritten; "
            "move the edit into a patch or the base, or compile with --force"
        )
        problem = Problem(Code.HAND_EDITED, message, (name,), file)
        return SkillResult(name, Outcome.HAND_EDITED, file, compiled, (problem,))
    outcome = Outcome.UNCHANGED if state is FileState.CURRENT else Outcome.WRITTEN
    return SkillResult(name, outcome, file, compiled)


def _write(result: SkillResult) -> SkillResult:
    assert result.file is not None
    assert result.compiled is not None
    try:
        write_atomically(result.file, result.compiled.text)
    except OSError as error:
        return _failed(result.skill, error)
    return result


def _failed(skill: str, error: OSError) -> SkillResult:
    return SkillResult(skill, Outcome.FAILED, None, None, (replace(of_system(error), ids=(skill,)),))
