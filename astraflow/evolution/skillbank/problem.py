"""What can be wrong with a skill bank: a closed vocabulary of codes, and one error that carries them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from astraflow.errors import ConfigError


class Code(StrEnum):
    """Why a bank, a skill or a package is refused, or what it is warned about."""

    CONFLICT = "conflict"
    """Two active patches exclude each other."""
    CYCLE = "cycle"
    """Patches depend on each other in a circle."""
    INACTIVE_DEPENDENCY = "inactive_dependency"
    """A patch needs one, here or in another skill, that is not active."""
    UNKNOWN_SECTION = "unknown_section"
    """A patch targets a section that the skill does not have."""
    UNKNOWN_ACTION = "unknown_action"
    """A patch's action is none of replace, append, prepend, insert_after."""
    UNKNOWN_SKILL = "unknown_skill"
    """A skill, group or profile that the bank does not have."""
    MISSING_FILE = "missing_file"
    """A file that the bank or a manifest names is not there."""
    INACTIVE_STATUS = "inactive_status"
    """A manifest activates a patch that is archived, or not accepted yet."""
    DOUBLE_REPLACE = "double_replace"
    """Two active patches replace one section."""
    DUPLICATE_SECTION = "duplicate_section"
    """One name for two sections."""
    MALFORMED_ANCHOR = "malformed_anchor"
    """A section's anchor is nested, unclosed, unopened or misspelt."""
    OUTSIDE_ROOT = "outside_root"
    """A path leaves the folder that it must stay in."""
    MALFORMED_FILE = "malformed_file"
    """A YAML or JSON text, or one of its values, is not what it must be."""
    SKILL_FORMAT = "skill_format"
    """A compiled skill breaks the Agent Skills format."""
    HAND_EDITED = "hand_edited"
    """A compiled file was changed by somebody else than the compiler."""
    STALE = "stale"
    """A compiled file is not what the bank's sources say now."""
    DEPRECATED = "deprecated"
    """An active patch has been superseded."""
    NO_EFFECT = "no_effect"
    """An active patch changes nothing, because a later one replaces what it wrote."""
    SQUASH = "squash"
    """A squash would change what somebody else gets."""
    UNKNOWN_PACKAGE = "unknown_package"
    """A package that the registry does not know, or none where one is needed."""
    NAME_TAKEN = "name_taken"
    """A package name that was used before."""
    GATE = "gate"
    """A promotion whose condition does not hold."""
    DIGEST = "digest"
    """A frozen file is not the one that was frozen."""
    INPUT_OUTPUT = "input_output"
    """The operating system refused a read or a write."""
    MISSING_EVIDENCE = "missing_evidence"
    """A run or a round left less than a complete one does."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, with everything needed to find it."""

    code: Code
    message: str
    """One sentence that names what is wrong and what was expected."""
    ids: tuple[str, ...] = ()
    """The patches, skills or packages concerned."""
    file: Path | None = None
    line: int | None = None
    """1-based; None where the problem has no line."""

    def __str__(self) -> str:
        where = "" if self.file is None else f"{self.file}:{self.line}: " if self.line else f"{self.file}: "
        return f"{where}{self.message}"

    def as_json(self) -> dict[str, Any]:
        """The form of `--json`: keys without a value are left out."""
        values = {
            "code": str(self.code),
            "message": self.message,
            "ids": list(self.ids),
            "file": None if self.file is None else str(self.file),
            "line": self.line,
        }
        return {key: value for key, value in values.items() if value not in (None, [])}


class SkillBankError(ConfigError):
    """A skill bank, skill or package is refused; `problems` says all that is known to be wrong."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


def of_system(error: OSError) -> Problem:
    """What the operating system refused, as a problem."""
    file = Path(error.filename) if isinstance(error.filename, str) else None
    return Problem(Code.INPUT_OUTPUT, error.strerror or str(error), file=file)


def refuse_if_any(problems: Iterable[Problem]) -> None:
    """Raise one SkillBankError with all problems, if there are any."""
    found = tuple(problems)
    if found:
        raise SkillBankError(*found)
