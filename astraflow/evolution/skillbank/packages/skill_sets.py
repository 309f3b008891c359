"""The skills in a package: `skills/<group>/<skill>.md`, and packages made of skills only (stable, experimental)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.compiler import compile_skill
from astraflow.evolution.skillbank.packages.freezing import Draft, files_below, read_manifest
from astraflow.evolution.skillbank.packages.identity import Kind, PackageId
from astraflow.evolution.skillbank.packages.registry import Registry, package_folder
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.snapshots import Snapshot, latest_snapshot

SKILLS = "skills"
SKILL_SETS = frozenset({Kind.STABLE, Kind.EXPERIMENTAL, Kind.VERTICAL})
"""Kinds whose content is skills: what other packages can be made from."""


@dataclass(frozen=True)
class SkillFile:
    """A compiled skill in a package."""

    name: str
    group: str
    file: Path

    @property
    def place(self) -> str:
        """Its path in a package."""
        return f"{SKILLS}/{self.group}/{self.name}.md"


@dataclass(frozen=True)
class SkillSet:
    """The content of a package that is made of skills."""

    id: PackageId
    manifest: Mapping[str, Any]
    skills: tuple[SkillFile, ...]
    others: tuple[str, ...]
    """Files that are no skills: what a task left there. They go into no other package."""

    @property
    def files(self) -> dict[str, Path]:
        """The skills, as a draft wants them."""
        return {skill.place: skill.file for skill in self.skills}


def read_skill_set(bank: Bank, registry: Registry, package_id: PackageId) -> SkillSet:
    """Read a stable, experimental or vertical package. SkillBankError if it is unknown or of another kind."""
    if package_id.kind not in SKILL_SETS:
        message = f"package '{package_id}' is no skill set; name a stable, experimental or vertical one"
        raise SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message, (str(package_id),)))
    registry.get(package_id)
    folder = package_folder(bank, package_id)
    manifest = read_manifest(bank, package_id)
    skills, others = [], []
    for name, file in files_below(folder).items():
        parts = Path(name).parts
        if len(parts) == 3 and parts[0] == SKILLS and file.suffix == ".md":
            skills.append(SkillFile(file.stem, parts[1], file))
        elif name != "manifest.json":
            others.append(name)
    return SkillSet(package_id, manifest, tuple(skills), tuple(others))


def draft_stable(bank: Bank, name: str) -> Draft:
    """A stable package: the latest snapshot, frozen."""
    package_id = PackageId(Kind.STABLE, "", name)
    snapshot = latest_snapshot(bank)
    if not snapshot.texts:
        message = f"no snapshot in {bank.compiled_dir}; compile with --all first"
        raise SkillBankError(Problem(Code.MISSING_FILE, message, (str(package_id),)))
    files = {f"{SKILLS}/{key}.md": snapshot.folder / f"{key}.md" for key in snapshot.texts}
    details = {"source": f"snapshot:{snapshot.name}", "skills": _names(files)}
    return Draft(package_id, "stable", files, details, tuple(_newer_sources(bank, snapshot, package_id)))


def draft_experimental(bank: Bank, registry: Registry, name: str, domain: str, source: PackageId | None) -> Draft:
    """An experimental package: a copy of a stable or vertical one (without a name, the domain's selection)."""
    package_id = PackageId(Kind.EXPERIMENTAL, domain, name)
    origin = source or registry.select(domain)
    if origin.kind not in (Kind.STABLE, Kind.VERTICAL):
        message = f"an experimental package is copied from a stable or vertical one, not from '{origin}'"
        raise SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message, (str(package_id), str(origin))))
    copied = read_skill_set(bank, registry, origin)
    details = {"domain": domain, "source": str(origin), "skills": _names(copied.files)}
    return Draft(package_id, "experimental", copied.files, details)


def _newer_sources(bank: Bank, snapshot: Snapshot, package_id: PackageId) -> Iterator[Problem]:
    """A warning for each skill whose sources say something else than the snapshot that is about to be frozen."""
    for name, entry in bank.skills.items():
        try:
            current = compile_skill(bank, name).text
        except SkillBankError:
            current = ""
        if current != snapshot.texts.get(f"{entry.group}/{name}"):
            message = f"'{package_id}' is made of snapshot {snapshot.name}; the sources of '{name}' differ from it"
            yield Problem(Code.STALE, message, (str(package_id), name))


def _names(files: Mapping[str, Path]) -> list[str]:
    return sorted(Path(place).stem for place in files)
