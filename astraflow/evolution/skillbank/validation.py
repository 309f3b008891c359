"""The whole bank, looked at: every source, every patch (active or not), every output, every package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from astraflow.evolution.skillbank.bank import Bank, SkillSource
from astraflow.evolution.skillbank.compiler import Compiled, compile_skill
from astraflow.evolution.skillbank.output import FileState, file_state
from astraflow.evolution.skillbank.packages.freezing import read_manifest, verify_package
from astraflow.evolution.skillbank.packages.identity import FOLDERS, FROZEN, WITH_DOMAIN
from astraflow.evolution.skillbank.packages.registry import load_registry, manifest_path, registry_file
from astraflow.evolution.skillbank.patch import Patch, PatchStatus
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError

PUT_AWAY = frozenset({PatchStatus.ARCHIVED, PatchStatus.REJECTED})


@dataclass
class Findings:
    """What a look at the bank brought up."""

    errors: list[Problem] = field(default_factory=list)
    """What stops a compile, a package or a reader."""
    warnings: list[Problem] = field(default_factory=list)
    """What somebody should know."""


@dataclass(frozen=True)
class SkillStatus:
    """One skill at a glance."""

    skill: str
    group: str
    state: str
    """A `FileState`, or `broken` where the sources do not compile."""
    active: tuple[str, ...]
    disabled: tuple[str, ...]
    profiles: tuple[str, ...]
    patches: dict[str, int]
    """Patch status → how many patch files have it; `unreadable` for those that do not parse."""

    def as_json(self) -> dict[str, Any]:
        """The form of `--json`."""
        return {
            "skill": self.skill,
            "group": self.group,
            "state": self.state,
            "active": list(self.active),
            "disabled": list(self.disabled),
            "profiles": list(self.profiles),
            "patches": self.patches,
        }


def validate(bank: Bank) -> Findings:
    """Check everything in a bank; nothing is written."""
    findings = Findings()
    for name in bank.skills:
        _validate_skill(bank, name, findings)
    _validate_packages(bank, findings)
    findings.errors = list(dict.fromkeys(findings.errors))
    findings.warnings += _unlisted_sources(bank)
    return findings


def skill_status(bank: Bank, name: str) -> SkillStatus:
    """One skill's patches and how its file stands to its sources."""
    entry = bank.entry(name)
    try:
        source = bank.source(name)
    except SkillBankError:
        return SkillStatus(name, entry.group, "broken", (), (), (), {})
    counts: Counter[str] = Counter()
    for file in source.patch_files():
        try:
            counts[str(Patch.read(file).status)] += 1
        except SkillBankError:
            counts["unreadable"] += 1
    try:
        state = str(_file_state(bank, compile_skill(bank, name)))
    except SkillBankError:
        state = "broken"
    manifest = source.manifest
    return SkillStatus(
        name,
        entry.group,
        state,
        manifest.active,
        manifest.disabled,
        tuple(manifest.profiles),
        dict(sorted(counts.items())),
    )


def _validate_skill(bank: Bank, name: str, findings: Findings) -> None:
    try:
        source = bank.source(name)
    except SkillBankError as error:
        findings.errors += error.problems
        return
    _validate_patches(source, findings)
    for profile in (None, *source.manifest.profiles):
        try:
            compiled = compile_skill(bank, name, profile)
            findings.warnings += [warning for warning in compiled.warnings if warning not in findings.warnings]
            if profile is None:
                findings.warnings += _output_warnings(bank, compiled, source)
        except SkillBankError as error:
            findings.errors += error.problems


def _validate_patches(source: SkillSource, findings: Findings) -> None:
    seen: dict[str, Patch] = {}
    for file in source.patch_files():
        try:
            patch = Patch.read(file)
        except SkillBankError as error:
            findings.errors += error.problems
            continue
        if patch.id in seen:
            message = f"patch id '{patch.id}' is in {seen[patch.id].file.name} and {file.name}"
            findings.errors.append(Problem(Code.MALFORMED_FILE, message, (patch.id,), file))
        seen[patch.id] = patch
    sections = {*source.section_names, *seen}
    for patch in seen.values():
        if patch.status not in PUT_AWAY and patch.target_section not in sections:
            message = f"patch '{patch.id}' targets the unknown section '{patch.target_section}'"
            findings.warnings.append(Problem(Code.UNKNOWN_SECTION, message, (patch.id,), patch.file))
    for patch_id in source.manifest.disabled:
        if patch_id not in seen:
            message = f"disabled patch '{patch_id}' of '{source.entry.name}' has no file"
            findings.errors.append(Problem(Code.MISSING_FILE, message, (patch_id,), source.manifest.file))


def _output_warnings(bank: Bank, compiled: Compiled, source: SkillSource) -> Iterator[Problem]:
    state = _file_state(bank, compiled)
    said = {
        FileState.STALE: (Code.STALE, "is older than its sources; compile it"),
        FileState.MISSING: (Code.MISSING_FILE, "was not compiled yet"),
        FileState.HAND_EDITED: (Code.HAND_EDITED, "was edited by hand"),
    }
    # a profile's output is a choice, not an oversight
    if state in said and not (state is FileState.STALE and _is_a_profile(bank, compiled.skill, source)):
        code, text = said[state]
        yield Problem(code, f"skill '{compiled.skill}' {text}", (compiled.skill,), bank.output_file(compiled.skill))


def _is_a_profile(bank: Bank, name: str, source: SkillSource) -> bool:
    return any(
        _file_state(bank, compile_skill(bank, name, profile)) is FileState.CURRENT
        for profile in source.manifest.profiles
    )


def _file_state(bank: Bank, compiled: Compiled) -> FileState:
    return file_state(bank, compiled, bank.output_file(compiled.skill))


def _validate_packages(bank: Bank, findings: Findings) -> None:
    try:
        registry = load_registry(bank)
    except SkillBankError as error:
        findings.errors += error.problems
        return
    for entry in registry.entries:
        try:
            read_manifest(bank, entry.id)
            if entry.path != manifest_path(bank, entry.id):
                message = f"registry gives '{entry.id}' the path '{entry.path}', not {manifest_path(bank, entry.id)}"
                problem = Problem(Code.MALFORMED_FILE, message, (str(entry.id),), registry_file(bank))
                findings.errors.append(problem)
            if entry.id.kind in FROZEN:
                findings.errors += verify_package(bank, entry.id)
        except SkillBankError as error:
            findings.errors += error.problems
    listed = {entry.id.folder for entry in registry.entries}
    for kind, top in FOLDERS.items():
        depth = "*/*" if kind in WITH_DOMAIN else "*"
        for folder in sorted((bank.packages_dir / top).glob(depth)):
            if folder.is_dir() and folder.relative_to(bank.packages_dir) not in listed:
                message = "package folder is not in the registry: left by a crash, or copied by hand"
                findings.warnings.append(Problem(Code.UNKNOWN_PACKAGE, message, (folder.name,), folder))


def _unlisted_sources(bank: Bank) -> Iterator[Problem]:
    for group in bank.groups:
        for folder in sorted((bank.root / group).glob("*/")):
            if (folder / "manifest.yaml").is_file() and folder.name not in bank.skills:
                message = f"skill source '{group}/{folder.name}' is not in bank.yaml"
                yield Problem(Code.UNKNOWN_SKILL, message, (folder.name,), folder)
