"""Where each line of a section comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from astraflow.errors import suggestion
from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.compiler import compile_skill
from astraflow.evolution.skillbank.patch import Action, Patch
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.sections import Part, Piece


@dataclass(frozen=True)
class Explanation:
    """A section, part by part."""

    skill: str
    section: Piece
    touched: tuple[Patch, ...]
    """Every active patch that targets or made the section, in the order in which they applied."""

    def lost(self) -> tuple[str, ...]:
        """Sources whose text is no longer in the section, because a later patch replaced it."""
        left = {part.origin for part in self.section.parts}
        sources = ["base"] if any(patch.action is Action.REPLACE for patch in self.touched) else []
        sources += [patch.id for patch in self.touched if patch.action is not Action.INSERT_AFTER]
        return tuple(source for source in sources if source not in left)

    def as_json(self) -> dict[str, Any]:
        """The form of `--json`."""
        patches = {patch.id: patch for patch in self.touched}
        return {
            "skill": self.skill,
            "section": self.section.name,
            "parts": [_part(part, patches.get(part.origin)) for part in self.section.parts],
            "replaced": list(self.lost()),
            "text": self.section.text,
        }


def explain(bank: Bank, skill: str, section: str, profile: str | None = None) -> Explanation:
    """Explain one section of a compiled skill. SkillBankError lists the sections that there are."""
    compiled = compile_skill(bank, skill, profile)
    piece = compiled.document.section(section)
    if piece is None:
        known = list(compiled.document.section_names)
        hint = suggestion(section, known)
        message = f"skill '{skill}' has no section '{section}'{hint}; known: {', '.join(known) or 'none'}"
        raise SkillBankError(Problem(Code.UNKNOWN_SECTION, message, (skill, section), bank.source(skill).base_file))
    touched = tuple(
        patch
        for patch in compiled.patches
        if section == (patch.id if patch.action is Action.INSERT_AFTER else patch.target_section)
    )
    return Explanation(skill, piece, touched)


def _part(part: Part, patch: Patch | None) -> dict[str, Any]:
    described: dict[str, Any] = {"origin": part.origin, "file": str(part.file), "line": part.line, "text": part.text}
    if patch is not None:
        described |= {"action": str(patch.action), "description": patch.description, "status": str(patch.status)}
        described |= {"evidence": {key: str(value) for key, value in patch.extra.items()}}
    return described
