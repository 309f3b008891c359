"""Changes to a bank's sources: a patch is added, judged, made active, taken out again.

Each is refused before anything is written, or done; two processes that change one bank wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.compiler import apply_patch, compile_skill
from astraflow.evolution.skillbank.patch import Patch, PatchStatus
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.text_file import locked, read_text, with_fields, write_atomically


def add_patch(bank: Bank, skill: str, patch: Patch) -> Patch:
    """Write a new patch file. Refused if its id is taken or its target is not there; it is not active by this."""
    with locked(bank.root):
        source = bank.source(skill)
        file = source.patch_folder / f"{patch.id}.md"
        text = patch.render()
        parsed = Patch.parse(text, file)
        if file.exists():
            message = f"skill '{skill}' has a patch '{patch.id}' already"
            raise SkillBankError(Problem(Code.NAME_TAKEN, message, (patch.id,), file))
        apply_patch(compile_skill(bank, skill).document, parsed, skill)
        write_atomically(file, text)
        return parsed


def set_patch_fields(bank: Bank, skill: str, patch_id: str, fields: Mapping[str, Any]) -> Patch:
    """Set front-matter keys of a patch (None takes one out); the rest of the file stays as it was written."""
    with locked(bank.root):
        return _set_fields(bank, skill, patch_id, fields)


def activate(bank: Bank, skill: str, patch_id: str) -> None:
    """Accept a patch and name it last in the manifest. Nothing is changed if the skill would not compile with it."""
    with locked(bank.root):
        source = bank.source(skill)
        compile_skill(bank, skill, trial=[source.patch(patch_id)])
        _set_fields(bank, skill, patch_id, {"status": str(PatchStatus.ACCEPTED)})
        if patch_id not in source.manifest.active:
            manifest = source.manifest.with_active((*source.manifest.active, patch_id))
            write_atomically(manifest.file, manifest.render())


def deactivate(bank: Bank, skill: str, patch_id: str, status: PatchStatus) -> None:
    """Take a patch out of the manifest and give it another status, e.g. after a regression."""
    with locked(bank.root):
        manifest = bank.source(skill).manifest
        if patch_id in manifest.active:
            left = manifest.with_active(tuple(other for other in manifest.active if other != patch_id))
            write_atomically(left.file, left.render())
        _set_fields(bank, skill, patch_id, {"status": str(status)})


def _set_fields(bank: Bank, skill: str, patch_id: str, fields: Mapping[str, Any]) -> Patch:
    file = bank.source(skill).patch(patch_id).file
    text = with_fields(read_text(file), file, fields)
    patch = Patch.parse(text, file)
    write_atomically(file, text)
    return patch
