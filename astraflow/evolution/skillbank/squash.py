"""A squash makes the active patches part of the base: the compiled text stays, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass, replace

from astraflow.evolution.skillbank.bank import Bank, SkillSource
from astraflow.evolution.skillbank.compiler import Compiled, compile_skill
from astraflow.evolution.skillbank.manifest import Manifest, Profile
from astraflow.evolution.skillbank.output import write_skills
from astraflow.evolution.skillbank.patch import MERGED_INTO, PatchStatus
from astraflow.evolution.skillbank.problem import Code, Problem, refuse_if_any
from astraflow.evolution.skillbank.sections import parse_document
from astraflow.evolution.skillbank.text_file import (
    FENCE,
    locked,
    read_text,
    split_front_matter,
    with_fields,
    write_atomically,
)


@dataclass(frozen=True)
class Squash:
    """What a squash did, or would do."""

    skill: str
    patches: tuple[str, ...]
    """Now part of the base and archived."""
    base: str
    """The new text of the base."""


def squash_skill(bank: Bank, name: str, dry_run: bool = False) -> Squash:
    """Merge the active patches into the base, anchors kept; the skill is compiled and snapshotted first.

    Raises SkillBankError before the base is touched if the skill was edited by hand, or if a profile leaves one of the
    patches out: after the squash it could not.
    """
    source = bank.source(name)
    compiled = compile_skill(bank, name)
    merged = tuple(patch.id for patch in compiled.patches)
    refuse_if_any(_profiles_that_would_change(source.manifest, merged))
    base = _base_text(source, compiled)
    if not merged or dry_run:
        return Squash(name, merged, base)
    # so that the snapshot, which is the way back, and the output are those of before
    refuse_if_any(write_skills(bank, [name]).problems)
    with locked(bank.root):
        _merge(source, compiled, base)
    return Squash(name, merged, base)


def _merge(source: SkillSource, compiled: Compiled, base: str) -> None:
    archived = {
        patch.file: with_fields(
            read_text(patch.file),
            patch.file,
            {"status": str(PatchStatus.ARCHIVED), MERGED_INTO: source.base_file.name},
        )
        for patch in compiled.patches
    }
    write_atomically(source.base_file, base)
    merged = tuple(patch.id for patch in compiled.patches)
    write_atomically(source.manifest.file, _without(source.manifest, merged).render())
    for file, text in archived.items():
        write_atomically(file, text)


def _base_text(source: SkillSource, compiled: Compiled) -> str:
    text = f"{FENCE}\n{source.front.header}{FENCE}\n\n{compiled.document.render(anchors=True)}"
    # what was written must read back as the same sections, or the next patch would not find its target
    front = split_front_matter(text, source.base_file)
    again = parse_document(front.body, source.base_file, front.body_line)
    if again.render() != compiled.document.render() or again.section_names != compiled.document.section_names:
        message = f"the sections of '{compiled.skill}' would not survive a squash"
        refuse_if_any([Problem(Code.SQUASH, message, (compiled.skill,), source.base_file)])
    return text


def _profiles_that_would_change(manifest: Manifest, merged: tuple[str, ...]) -> list[Problem]:
    problems = []
    for name in manifest.profiles:
        left_out = [patch_id for patch_id in merged if patch_id not in manifest.active_in(name)]
        if left_out:
            message = f"profile '{name}' leaves out {', '.join(left_out)}; after a squash it could not"
            problems.append(Problem(Code.SQUASH, message, (name, *left_out), manifest.file))
    return problems


def _without(manifest: Manifest, merged: tuple[str, ...]) -> Manifest:
    def kept(ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(patch_id for patch_id in ids if patch_id not in merged)

    profiles = {
        name: Profile(
            profile.description, None if profile.active is None else kept(profile.active), kept(profile.disabled)
        )
        for name, profile in manifest.profiles.items()
    }
    return replace(manifest, active=kept(manifest.active), profiles=profiles)
