"""A package is made from a draft: everything is checked and listed first, then written beside its place and moved in.

Invariant: a package is there whole, with the SHA-256 of each of its files, or it is not there. A dry run ends before
the first write.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.packages.identity import PackageId
from astraflow.evolution.skillbank.packages.registry import (
    MANIFEST,
    Entry,
    Registry,
    load_registry,
    manifest_path,
    package_folder,
    read_json,
    save_registry,
)
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.text_file import locked

CHUNK = 1 << 20


@dataclass(frozen=True)
class Draft:
    """A package that could be made."""

    id: PackageId
    status: str
    files: Mapping[str, Path]
    """Path in the package, with `/` → the file that is copied there."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest says besides id, type, status, created_at and files."""
    warnings: tuple[Problem, ...] = ()

    @property
    def listed(self) -> dict[str, Any]:
        """The details that the registry repeats."""
        return {key: self.details[key] for key in ("domain", "source") if self.details.get(key)}


def make_package(bank: Bank, draft: Draft, created_at: datetime, dry_run: bool = False) -> Entry:
    """Write a draft and list it. SkillBankError if its name was used before, dry run or not."""
    folder = package_folder(bank, draft.id)
    details = {"created_at": created_at.isoformat(timespec="seconds"), **draft.listed}
    entry = Entry(draft.id, draft.status, manifest_path(bank, draft.id), details)
    refuse_used_name(bank, load_registry(bank), draft.id)
    if dry_run:
        return entry
    with locked(bank.root):
        registry = load_registry(bank)
        refuse_used_name(bank, registry, draft.id)
        _write(bank, draft, entry, folder)
        save_registry(bank, registry.with_entry(entry))
    return entry


def refuse_used_name(bank: Bank, registry: Registry, package_id: PackageId) -> None:
    """Names are not reused: whoever noted one down must always find the same package under it."""
    folder = package_folder(bank, package_id)
    if registry.find(package_id) is not None or folder.exists():
        message = f"package '{package_id}' exists already; names are not reused"
        raise SkillBankError(Problem(Code.NAME_TAKEN, message, (str(package_id),), folder))


def digests(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of each file, in alphabetical order of the names."""
    return {name: sha256(files[name]) for name in sorted(files)}


def sha256(file: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def files_below(folder: Path, prefix: str = "") -> dict[str, Path]:
    """Every file under a folder by its path in it, in alphabetical order.

    Links are refused: what they lead to would be frozen from outside the folder, or not at all.
    """
    found = {}
    refuse_link(folder)
    for base, folders, names in os.walk(folder):
        for name in (*folders, *names):
            refuse_link(Path(base, name))
        for name in names:
            file = Path(base, name)
            found[prefix + file.relative_to(folder).as_posix()] = file
    return dict(sorted(found.items()))


def refuse_link(path: Path) -> None:
    """SkillBankError if a path is a link."""
    if path.is_symlink():
        raise SkillBankError(Problem(Code.OUTSIDE_ROOT, "a link cannot be frozen; replace it with the file", file=path))


def verify_package(bank: Bank, package_id: PackageId) -> Iterator[Problem]:
    """Each file that is not the one that was frozen: changed, gone, or new."""
    folder = package_folder(bank, package_id)
    frozen = _frozen_digests(folder, package_id)
    present = {name: file for name, file in files_below(folder).items() if name != MANIFEST}
    for name in sorted(frozen.keys() | present.keys()):
        if name not in present:
            reason = "is missing"
        elif name not in frozen:
            reason = "was added"
        elif sha256(present[name]) != frozen[name]:
            reason = "was changed"
        else:
            continue
        message = f"package '{package_id}': '{name}' {reason} since it was frozen"
        yield Problem(Code.DIGEST, message, (str(package_id), name), folder / name)


def read_manifest(bank: Bank, package_id: PackageId) -> dict[str, Any]:
    """A package's manifest. SkillBankError if it is missing or of another package."""
    file = package_folder(bank, package_id) / MANIFEST
    values = read_json(file)
    if values.get("id") != str(package_id):
        message = f"manifest of '{package_id}' says id {values.get('id')!r}"
        raise SkillBankError(Problem(Code.MALFORMED_FILE, message, (str(package_id),), file))
    return values


def _frozen_digests(folder: Path, package_id: PackageId) -> dict[str, str]:
    file = folder / MANIFEST
    listed = read_json(file).get("files")
    if not isinstance(listed, dict):
        message = f"manifest of '{package_id}' lists no files"
        raise SkillBankError(Problem(Code.MALFORMED_FILE, message, (str(package_id),), file))
    return listed


def _write(bank: Bank, draft: Draft, entry: Entry, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".staging-"))
    try:
        staging.chmod(0o755)
        for name, file in draft.files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, staging / name)
        manifest = {
            "id": str(draft.id),
            "type": str(draft.id.kind),
            "status": draft.status,
            "created_at": entry.details["created_at"],
            **draft.details,
            # of what was copied, not of what was read for the draft: the source may have moved on
            "files": digests(files_below(staging)),
        }
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        (staging / MANIFEST).write_text(f"{text}\n", "utf-8")
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
