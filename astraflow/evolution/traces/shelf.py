"""The skill bank as the optimizer sees it: sections, trials that leave nothing on disk, activation, compiled output."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.errors import DataError
from astraflow.evolution.skillbank import (
    Bank,
    Patch,
    PatchStatus,
    SkillBankError,
    activate,
    add_patch,
    compile_skill,
    deactivate,
    set_patch_fields,
    write_skills,
)
from astraflow.evolution.skillbank.sections import Part


@dataclass(frozen=True)
class SkillView:
    """A skill as it is compiled now."""

    name: str
    sections: Mapping[str, str]
    """Section → its text, in order, with the active patches in it."""
    text: str
    """The whole SKILL.md."""

    @property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class SkillShelf:
    """Reads the bank anew on each call, so that other processes may change it in between."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        return sorted(self._bank().skills)

    def view(self, skill: str, *trial: Patch) -> SkillView:
        """The skill as compiled now, or as it would be with `trial` patches; nothing is written."""
        compiled = compile_skill(self._bank(), skill, trial=trial)
        sections = {piece.name: piece.text for piece in compiled.document.pieces if piece.name}
        return SkillView(skill, sections, compiled.text)

    def rewritten(self, skill: str, sections: Mapping[str, str]) -> str:
        """The compiled text as it would be with some sections' texts exchanged."""
        compiled = compile_skill(self._bank(), skill)
        document = compiled.document
        for name, text in sections.items():
            piece = document.section(name)
            if piece is None:
                raise DataError(f"'{skill}' has no section '{name}'")
            document = document.with_section(piece.with_parts(Part(text, "trial", Path(), 1)))
        return compiled.text.removesuffix(compiled.document.render()) + document.render()

    def output(self, skill: str) -> Path:
        """Where the compiled skill lies."""
        return self._bank().output_file(skill)

    def write(self, skill: str) -> Path:
        """Compile a skill to its file; SkillBankError says why it could not, for example a hand-edited file."""
        report = write_skills(self._bank(), [skill])
        if report.problems:
            raise SkillBankError(*report.problems)
        return self.output(skill)

    def patches(self, skill: str) -> list[Patch]:
        return self._bank().source(skill).patches()

    def patch(self, skill: str, patch_id: str) -> Patch:
        return self._bank().source(skill).patch(patch_id)

    def is_active(self, skill: str, patch_id: str) -> bool:
        return patch_id in self._bank().source(skill).manifest.active

    def add(self, skill: str, patch: Patch) -> Patch:
        """Write a new patch file; it changes nothing until it is activated."""
        return add_patch(self._bank(), skill, patch)

    def set_fields(self, skill: str, patch_id: str, **fields: Any) -> Patch:
        """Set front-matter keys of a patch file."""
        return set_patch_fields(self._bank(), skill, patch_id, fields)

    def activate(self, skill: str, patch_id: str) -> None:
        """Accept a patch and name it in the manifest."""
        activate(self._bank(), skill, patch_id)

    def deactivate(self, skill: str, patch_id: str, status: PatchStatus) -> None:
        """Take a patch out of the manifest and give it another status."""
        deactivate(self._bank(), skill, patch_id, status)

    def _bank(self) -> Bank:
        return Bank.load(self.root)
