"""A patch: one small change to one section of a skill, with where it came from and how far it is trusted.

    proposed → evaluated → accepted | rejected → archived

Only an accepted patch may be active. A hand-written patch without a status counts as accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.sections import find_anchors
from astraflow.evolution.skillbank.text_file import FENCE, Fields, read_text, split_front_matter, to_yaml

PATCH_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
MERGED_INTO = "merged_into"
"""Front-matter key of an archived patch whose text a squash made part of the base: what depends on it still may."""


class Action(StrEnum):
    """What a patch does with its section."""

    REPLACE = "replace"
    """The section's text becomes the patch's."""
    APPEND = "append"
    """The patch's text follows the section's, one blank line apart."""
    PREPEND = "prepend"
    """The patch's text precedes the section's, one blank line apart."""
    INSERT_AFTER = "insert_after"
    """The patch's text becomes a section of its own, named by the patch's id, right after the target."""


class PatchStatus(StrEnum):
    """How far a patch is trusted."""

    PROPOSED = "proposed"
    """Written, not measured."""
    EVALUATED = "evaluated"
    """Measured, not decided on."""
    ACCEPTED = "accepted"
    """Measured to help, or written by hand: may be active."""
    REJECTED = "rejected"
    """Measured not to help."""
    ARCHIVED = "archived"
    """Kept for the record; may not be active."""
    DEPRECATED = "deprecated"
    """May be active still; something better exists (`superseded_by`)."""


MAY_BE_ACTIVE = frozenset({PatchStatus.ACCEPTED, PatchStatus.DEPRECATED})
STATUS_SYNONYMS = {"active": PatchStatus.ACCEPTED}
KNOWN_KEYS = (
    "id",
    "target_section",
    "action",
    "description",
    "status",
    "depends_on",
    "conflicts_with",
    "superseded_by",
)


@dataclass(frozen=True)
class Patch:
    """One patch file."""

    id: str
    target_section: str
    action: Action
    body: str
    """Markdown without blank lines at either end and without anchors."""
    description: str = ""
    status: PatchStatus = PatchStatus.ACCEPTED
    depends_on: tuple[str, ...] = ()
    """Patches that must be active and come before: `id`, or `skill:id` of another skill."""
    conflicts_with: tuple[str, ...] = ()
    """Patches that must not be active together with this one: `id` or `skill:id`."""
    superseded_by: str = ""
    """For a deprecated patch: the better one."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Every other front-matter key (evidence, sessions, scores, …), kept as it is."""
    file: Path = Path()
    body_line: int = 1
    """1-based line of `file` that the body starts at."""

    @property
    def is_part_of_base(self) -> bool:
        """Has a squash made this patch part of its skill's base?"""
        return self.status is PatchStatus.ARCHIVED and bool(self.extra.get(MERGED_INTO))

    @classmethod
    def parse(cls, text: str, file: Path) -> Patch:
        """Read a patch file. SkillBankError names the key, action or line that is wrong."""
        front = split_front_matter(text, file)
        fields = Fields(front.values, file)
        patch_id = fields.text("id", file.stem)
        if not PATCH_ID.fullmatch(patch_id):
            raise fields.error(f"patch id '{patch_id}' must be letters, digits, '.', '_' and '-'")
        for _ in find_anchors(front.body, file, front.body_line):
            message = f"patch '{patch_id}' holds a section anchor; a patch is the text of one section"
            raise SkillBankError(Problem(Code.MALFORMED_ANCHOR, message, (patch_id,), file, front.body_line))
        body = front.body.strip("\n").rstrip()
        skipped = len(front.body) - len(front.body.lstrip("\n"))
        return cls(
            id=patch_id,
            target_section=fields.text("target_section"),
            action=_action(fields, patch_id),
            body=body,
            description=fields.text("description"),
            status=_status(fields, patch_id),
            depends_on=fields.texts("depends_on"),
            conflicts_with=fields.texts("conflicts_with"),
            superseded_by=fields.text("superseded_by"),
            extra={key: value for key, value in front.values.items() if key not in KNOWN_KEYS},
            file=file,
            body_line=front.body_line + skipped,
        )

    @classmethod
    def read(cls, file: Path) -> Patch:
        """Read a patch file from disk."""
        return cls.parse(read_text(file), file)

    def render(self) -> str:
        """The text of this patch's file; empty fields are left out."""
        values: dict[str, Any] = {
            "id": self.id,
            "target_section": self.target_section,
            "action": str(self.action),
            "description": self.description,
            "status": str(self.status),
            "depends_on": list(self.depends_on),
            "conflicts_with": list(self.conflicts_with),
            "superseded_by": self.superseded_by,
            **self.extra,
        }
        header = to_yaml({key: value for key, value in values.items() if value not in ("", [], None)})
        return f"{FENCE}\n{header}{FENCE}\n\n{self.body}\n"


def _action(fields: Fields, patch_id: str) -> Action:
    written = fields.text("action")
    try:
        return Action(written)
    except ValueError:
        known = ", ".join(Action)
        message = f"patch '{patch_id}' has the unknown action '{written}'; known: {known}"
        raise SkillBankError(Problem(Code.UNKNOWN_ACTION, message, (patch_id,), fields.file)) from None


def _status(fields: Fields, patch_id: str) -> PatchStatus:
    written = fields.text("status", PatchStatus.ACCEPTED)
    try:
        return STATUS_SYNONYMS.get(written) or PatchStatus(written)
    except ValueError:
        known = ", ".join(PatchStatus)
        raise fields.error(f"patch '{patch_id}' has the unknown status '{written}'; known: {known}") from None
