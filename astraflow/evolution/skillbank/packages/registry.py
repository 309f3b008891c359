"""`registry.json`: which packages there are, and which one is current for whom.

Invariant: an id is in it at most once and is never given to another package; the file is written whole or not at all,
under a lock, so that two processes that add packages at once both find theirs in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow.evolution.skillbank.bank import Bank, inside
from astraflow.evolution.skillbank.packages.identity import Kind, PackageId
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.text_file import read_text, write_atomically

FORMAT = 1
LISTS = {Kind.TASK: "task_packages", Kind.LINEAGE: "lineage_archive"}
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """A package as the registry lists it."""

    id: PackageId
    status: str
    path: str
    """Its manifest, relative to the folder that the bank is in."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """created_at, domain, where it came from."""

    def as_json(self) -> dict[str, Any]:
        """The form in `registry.json` and of `--json`."""
        return {"id": str(self.id), "type": str(self.id.kind), "status": self.status, "path": self.path, **self.details}


@dataclass(frozen=True)
class Registry:
    """All packages of a bank, oldest first, and the current ones."""

    entries: tuple[Entry, ...] = ()
    current: Mapping[tuple[Kind, str], PackageId] = field(default_factory=dict)
    """(kind, domain) → the latest package; stable has the domain ''. Task and lineage packages are never current."""

    def find(self, package_id: PackageId) -> Entry | None:
        """The entry of a package."""
        return next((entry for entry in self.entries if entry.id == package_id), None)

    def get(self, package_id: PackageId) -> Entry:
        """The entry of a package. SkillBankError lists those of its kind."""
        entry = self.find(package_id)
        if entry is None:
            known = [str(other.id) for other in self.entries if other.id.kind is package_id.kind]
            message = f"no package '{package_id}'; known of its kind: {', '.join(known) or 'none'}"
            raise SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message, (str(package_id),)))
        return entry

    def of_kind(self, kind: Kind, domain: str | None = None) -> list[Entry]:
        """The packages of a kind, and of a domain where one is given."""
        return [e for e in self.entries if e.id.kind is kind and domain in (None, e.id.domain, e.details.get("domain"))]

    def select(self, domain: str) -> PackageId:
        """The skills for a task: the domain's vertical package, else the stable one. Others only by name."""
        chosen = self.current.get((Kind.VERTICAL, domain)) or self.current.get((Kind.STABLE, ""))
        if chosen is None:
            message = "no stable package; freeze one with --package stable --name NAME"
            raise SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message))
        return chosen

    def with_entry(self, entry: Entry) -> Registry:
        """The registry with one more package, current where its kind can be."""
        current = dict(self.current)
        if entry.id.kind not in LISTS:
            current[entry.id.kind, entry.id.domain] = entry.id
        return Registry((*self.entries, entry), current)

    def as_json(self) -> dict[str, Any]:
        """The whole file."""
        values: dict[str, Any] = {"version": FORMAT, "stable": self._listed(Kind.STABLE, "")}
        for kind in (Kind.EXPERIMENTAL, Kind.VERTICAL):
            domains = sorted({entry.id.domain for entry in self.of_kind(kind)})
            values[kind] = {domain: self._listed(kind, domain) for domain in domains}
        for kind, key in LISTS.items():
            values[key] = [entry.as_json() for entry in self.of_kind(kind)]
        return values

    def _listed(self, kind: Kind, domain: str) -> dict[str, Any]:
        current = self.current.get((kind, domain))
        packages = [entry.as_json() for entry in self.of_kind(kind, domain or None)]
        return {"current": str(current) if current else None, "packages": packages}


def registry_file(bank: Bank) -> Path:
    """Where a bank's registry is."""
    return bank.root / "registry.json"


def load_registry(bank: Bank) -> Registry:
    """Read the registry; without a file it is empty. SkillBankError names the entry that is wrong."""
    file = registry_file(bank)
    if not file.exists():
        return Registry()
    values = read_json(file)
    current: dict[tuple[Kind, str], PackageId] = {}
    entries: list[Entry] = []
    for kind, domain, group in _groups(values, file):
        packages = group.get("packages", [])
        if not isinstance(packages, list):
            raise _malformed(f"'packages' must be a list, not {packages!r}", file)
        for item in packages:
            entry = _entry(item, file)
            if entry.id.kind is not kind or any(other.id == entry.id for other in entries):
                raise _malformed(f"package '{entry.id}' is listed twice or in the wrong place", file)
            entries.append(entry)
        if group.get("current"):
            current[kind, domain] = PackageId.parse(group["current"])
            if all(entry.id != current[kind, domain] for entry in entries):
                raise _malformed(f"current package '{current[kind, domain]}' is not listed", file)
    return Registry(tuple(entries), current)


def save_registry(bank: Bank, registry: Registry) -> None:
    """Write the registry whole."""
    text = json.dumps(registry.as_json(), indent=2, ensure_ascii=False)
    write_atomically(registry_file(bank), f"{text}\n")


def package_folder(bank: Bank, package_id: PackageId) -> Path:
    """Where a package lies; SkillBankError if a link leads it out of the bank's packages."""
    folder = bank.packages_dir / package_id.folder
    return inside(bank.packages_dir, folder, f"package '{package_id}'", registry_file(bank), str(package_id))


def manifest_path(bank: Bank, package_id: PackageId) -> str:
    """Where a package's manifest is, as the registry writes it: from the folder that the bank is in."""
    return (package_folder(bank, package_id) / MANIFEST).relative_to(bank.root.parent).as_posix()


def read_json(file: Path) -> dict[str, Any]:
    """A JSON file that holds an object. SkillBankError names file and line."""
    try:
        value = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        problem = Problem(Code.MALFORMED_FILE, f"not valid JSON: {error.msg}", file=file, line=error.lineno)
        raise SkillBankError(problem) from None
    except RecursionError:
        raise _malformed("not valid JSON: nested too deeply", file) from None
    if not isinstance(value, dict):
        raise _malformed("must be a JSON object", file)
    return value


def _groups(values: Mapping[str, Any], file: Path) -> Iterator[tuple[Kind, str, Mapping[str, Any]]]:
    """Every list of packages in the file with its kind and domain."""
    yield Kind.STABLE, "", _object(values, "stable", file)
    for kind in (Kind.EXPERIMENTAL, Kind.VERTICAL):
        domains = _object(values, kind, file)
        for domain in domains:
            yield kind, domain, _object(domains, domain, file)
    for kind, key in LISTS.items():
        yield kind, "", {"packages": values.get(key, [])}


def _object(values: Mapping[str, Any], key: str, file: Path) -> dict[str, Any]:
    value = values.get(key, {})
    if not isinstance(value, dict):
        raise _malformed(f"'{key}' must be an object, not {value!r}", file)
    return value


def _entry(item: Any, file: Path) -> Entry:
    if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("id", "status", "path")):
        raise _malformed(f"a package needs id, status and path, not {item!r}", file)
    details = {key: value for key, value in item.items() if key not in ("id", "type", "status", "path")}
    return Entry(PackageId.parse(item["id"]), item["status"], item["path"], details)


def _malformed(message: str, file: Path) -> SkillBankError:
    return SkillBankError(Problem(Code.MALFORMED_FILE, message, file=file))
