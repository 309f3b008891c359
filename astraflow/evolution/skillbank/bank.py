"""A skill bank on disk: `bank.yaml` and the sources of each skill.

Invariant: no path that a bank names leaves its root. Sources and packages stay in the bank's folder, outputs in the
folder that `settings.output_base` names; links are followed before that is judged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astraflow.errors import suggestion
from astraflow.evolution.skillbank.manifest import Manifest
from astraflow.evolution.skillbank.patch import PATCH_ID, Patch
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.sections import Document, parse_document
from astraflow.evolution.skillbank.text_file import Fields, FrontMatter, read_mapping, read_text, split_front_matter

BANK_FILE = "bank.yaml"
FORMAT = "1"
"""First part of the version of bank.yaml that is read here."""
OUTPUT_FILE = "SKILL.md"
FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class SkillEntry:
    """A skill as `bank.yaml` lists it."""

    name: str
    group: str
    output: str
    """Relative to the output root, with `/`."""


@dataclass(frozen=True)
class SkillSource:
    """What a skill is compiled from."""

    entry: SkillEntry
    folder: Path
    manifest: Manifest
    base_file: Path
    front: FrontMatter
    document: Document

    @property
    def section_names(self) -> tuple[str, ...]:
        """The sections of the base, in order: what a patch may target."""
        return self.document.section_names

    @property
    def patch_folder(self) -> Path:
        """Where this skill's patches lie, active or not."""
        return self.folder / "patches"

    def patch(self, patch_id: str) -> Patch:
        """The patch with this id: the file of that name, else the one whose front-matter says so."""
        named = self.patch_folder / f"{patch_id}.md"
        if not PATCH_ID.fullmatch(patch_id) or not named.is_file():
            return self._patch_elsewhere(patch_id, named)
        patch = Patch.read(named)
        return patch if patch.id == patch_id else self._patch_elsewhere(patch_id, named)

    def patch_files(self) -> list[Path]:
        """Every patch file, sorted by name."""
        return sorted(self.patch_folder.glob("*.md"))

    def patches(self) -> list[Patch]:
        """Every patch, sorted by file name. SkillBankError if one cannot be read."""
        return [Patch.read(file) for file in self.patch_files()]

    def _patch_elsewhere(self, patch_id: str, named: Path) -> Patch:
        for file in self.patch_files():
            if _declared_id(file) == patch_id:
                return Patch.read(file)
        message = f"skill '{self.entry.name}' has no patch '{patch_id}'"
        raise SkillBankError(Problem(Code.MISSING_FILE, message, (patch_id,), named))


@dataclass(frozen=True)
class Bank:
    """A skill bank: where it is, what it lists, where its output goes."""

    root: Path
    """The bank's own folder, absolute."""
    output_root: Path
    """The folder that outputs stay in, absolute: the repository's root."""
    compiled_dir: Path
    """Where snapshots of the compiled skills go, inside `root`."""
    groups: Mapping[str, str]
    """Group → its description."""
    skills: Mapping[str, SkillEntry]
    """Every skill, in the order of `bank.yaml`."""

    @classmethod
    def load(cls, root: Path) -> Bank:
        """Read `bank.yaml`. SkillBankError names the key that is wrong."""
        root = root.resolve()
        file = root / BANK_FILE
        fields = Fields(read_mapping(file), file).only("version", "groups", "settings")
        version = str(fields.values.get("version", FORMAT))
        if version.partition(".")[0] != FORMAT:
            raise fields.error(f"version {version} is not known; this compiler reads version {FORMAT}")
        settings = fields.mapping("settings").only("compiled_dir", "output_base")
        groups: dict[str, str] = {}
        skills: dict[str, SkillEntry] = {}
        for group, inner in fields.mappings("groups").items():
            inner.only("description", "skills")
            groups[_folder_name(group, inner)] = inner.text("description")
            for name, skill in inner.mappings("skills").items():
                skill.only("output")
                if name in skills:
                    raise skill.error(f"skill '{name}' is in two groups: {skills[name].group} and {group}")
                output = skill.text("output") or f".claude/skills/{name}/{OUTPUT_FILE}"
                skills[_folder_name(name, skill)] = SkillEntry(name, group, output)
        return cls(
            root=root,
            output_root=(root / settings.text("output_base", "../")).resolve(),
            compiled_dir=inside(root, root / settings.text("compiled_dir", "compiled"), "settings.compiled_dir", file),
            groups=groups,
            skills=skills,
        )

    @property
    def file(self) -> Path:
        """Where this bank is described."""
        return self.root / BANK_FILE

    @property
    def packages_dir(self) -> Path:
        """Where packages lie."""
        return self.root / "packages"

    def entry(self, name: str) -> SkillEntry:
        """A skill by name. SkillBankError suggests the nearest known one."""
        if name not in self.skills:
            known = sorted(self.skills)
            message = f"unknown skill '{name}'{suggestion(name, known)}; known: {', '.join(known)}"
            raise SkillBankError(Problem(Code.UNKNOWN_SKILL, message, (name,), self.file))
        return self.skills[name]

    def group_members(self, group: str) -> list[str]:
        """The skills of a group, in the order of `bank.yaml`."""
        if group not in self.groups:
            known = sorted(self.groups)
            message = f"unknown group '{group}'{suggestion(group, known)}; known: {', '.join(known)}"
            raise SkillBankError(Problem(Code.UNKNOWN_SKILL, message, (group,), self.file))
        return [entry.name for entry in self.skills.values() if entry.group == group]

    def folder(self, name: str) -> Path:
        """Where a skill's sources lie."""
        entry = self.entry(name)
        return inside(self.root, self.root / entry.group / name, f"skill '{name}'", self.file)

    def manifest(self, name: str) -> Manifest:
        """A skill's manifest alone: what other skills' patches may depend on."""
        return Manifest.read(self.folder(name) / "manifest.yaml")

    def source(self, name: str) -> SkillSource:
        """Read a skill's manifest and base. SkillBankError names the file and line that is wrong."""
        entry = self.entry(name)
        folder = self.folder(name)
        manifest = self.manifest(name)
        base_file = inside(folder, folder / manifest.base, "base", manifest.file)
        front = split_front_matter(read_text(base_file), base_file)
        document = parse_document(front.body, base_file, front.body_line)
        return SkillSource(entry, folder, manifest, base_file, front, document)

    def output_file(self, name: str) -> Path:
        """Where a skill's compiled text goes, links followed."""
        entry = self.entry(name)
        where = f"output '{entry.output}' of skill '{name}'"
        file = inside(self.output_root, self.output_root / entry.output, where, self.file, name)
        if (file.parent.name, file.name) != (name, OUTPUT_FILE):
            message = f"{where} must end in {name}/{OUTPUT_FILE}"
            raise SkillBankError(Problem(Code.SKILL_FORMAT, message, (name,), self.file))
        twins = [other.name for other in self.skills.values() if (self.output_root / other.output).resolve() == file]
        if len(twins) > 1:
            message = f"skills {', '.join(twins)} have one output '{entry.output}'"
            raise SkillBankError(Problem(Code.MALFORMED_FILE, message, tuple(twins), self.file))
        return file


def inside(root: Path, path: Path, what: str, file: Path, *ids: str) -> Path:
    """The path with its links followed, if it stays under `root`; SkillBankError otherwise."""
    resolved = path.resolve()
    if not resolved.is_relative_to(root.resolve()):
        raise SkillBankError(Problem(Code.OUTSIDE_ROOT, f"{what} is outside its root {root}", ids, file))
    return resolved


def find_bank(start: Path) -> Path:
    """The `skill-bank` folder of the nearest directory at or above `start` that has one."""
    for folder in (start, *start.parents):
        for candidate in (folder / "skill-bank", folder):
            if (candidate / BANK_FILE).is_file():
                return candidate
    message = f"no skill-bank/{BANK_FILE} here or above; name the bank with --bank"
    raise SkillBankError(Problem(Code.MISSING_FILE, message, file=start))


def _folder_name(name: str, fields: Fields) -> str:
    if not FOLDER_NAME.fullmatch(name):
        raise fields.error(f"'{name}' must be letters, digits, '.', '_' and '-'")
    return name


def _declared_id(file: Path) -> object:
    """The id in a file's front-matter. A broken file that is not active must not stop a skill: `--validate` says it."""
    try:
        return split_front_matter(read_text(file), file).values.get("id")
    except SkillBankError:
        return None
