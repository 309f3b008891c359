"""A vertical package is promoted from an experimental one, through gates.

Invariant: without an effect that was measured in a finished run and evidence of how the skills came about, nothing
becomes a domain's default; what belongs to one task, and the skills that improve other skills, never do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.packages.freezing import Draft, read_manifest, verify_package
from astraflow.evolution.skillbank.packages.identity import Kind, PackageId
from astraflow.evolution.skillbank.packages.registry import Entry, Registry
from astraflow.evolution.skillbank.packages.skill_sets import SkillFile, SkillSet, read_skill_set
from astraflow.evolution.skillbank.packages.smoke import smoke_test_package, smoke_test_skills
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError, refuse_if_any

OPTIMISER_GROUP = "traj"
ROUND_FOLDERS = ("rounds", "events", "trajectories", "reports", "raw")
"""Top folders of what rounds leave; any other file that is no skill is of one task."""
PRIVATE = re.compile(
    r"rllm_train/output/runs/[A-Za-z0-9][\w.-]*"
    r"|traj_opt/output/\w+/(?:raw|trajectories)/[A-Za-z0-9][\w.-]*"
    r"|(?<![\w./])/(?:home|root|Users)/[\w.-]+"
)
"""What only one task has: a run's own files, a recorded session, somebody's home. `runs/<run_id>` is fine."""


@dataclass(frozen=True)
class Gate:
    """One condition of a promotion."""

    name: str
    passed: bool
    reason: str
    """What makes it hold, or what is missing."""

    def as_json(self) -> dict[str, Any]:
        """The form in a review."""
        return {"gate": self.name, "passed": self.passed, "reason": self.reason}


@dataclass(frozen=True)
class Promotion:
    """A promotion, reviewed: what would be taken, what not, and whether it may happen."""

    id: PackageId
    source: SkillSet
    promoted: tuple[SkillFile, ...]
    gates: tuple[Gate, ...]

    @property
    def excluded(self) -> tuple[str, ...]:
        """Skills that improve other skills: never a vertical package's."""
        return tuple(skill.name for skill in self.source.skills if skill not in self.promoted)

    def as_json(self) -> dict[str, Any]:
        """What `--review` prints, and what the manifest of the package keeps."""
        return {
            "target_package": str(self.id),
            "domain": self.id.domain,
            "source_package": str(self.source.id),
            "classification": {
                "vertical_candidates": [skill.name for skill in self.promoted],
                "excluded_from_vertical": list(self.excluded),
                "task_package_only": [name for name in self.source.others if not _is_of_rounds(name)],
                "lineage_archive_only": [name for name in self.source.others if _is_of_rounds(name)],
            },
            "gates": [gate.as_json() for gate in self.gates],
            "may_be_promoted": all(gate.passed for gate in self.gates),
        }


def review(bank: Bank, registry: Registry, name: str, domain: str, source: PackageId | None = None) -> Promotion:
    """Classify what an experimental package holds and check every gate; writes nothing."""
    package_id = PackageId(Kind.VERTICAL, domain, name)
    origin = source or registry.current.get((Kind.EXPERIMENTAL, domain))
    if origin is None or origin.kind is not Kind.EXPERIMENTAL:
        found = f"'{origin}' is none" if origin else f"domain '{domain}' has none"
        message = f"a vertical package is promoted from an experimental one; {found}"
        raise SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message, (str(package_id),)))
    if origin.domain != domain:
        message = f"'{origin}' is of domain '{origin.domain}', not '{domain}'"
        raise SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message, (str(package_id), str(origin))))
    content = read_skill_set(bank, registry, origin)
    promoted = tuple(skill for skill in content.skills if skill.group != OPTIMISER_GROUP)
    gates = (
        _successful_task(bank, registry, domain),
        _lineage(bank, registry, domain, origin),
        _smoke(bank, registry, content, promoted),
        _nothing_private(promoted),
    )
    return Promotion(package_id, content, promoted, gates)


def draft_vertical(promotion: Promotion) -> Draft:
    """The package of a promotion that passed. SkillBankError names each gate that is closed."""
    refuse_if_any(
        Problem(
            Code.GATE,
            f"gate '{gate.name}' of '{promotion.id}' is closed: {gate.reason}",
            (str(promotion.id), gate.name),
        )
        for gate in promotion.gates
        if not gate.passed
    )
    details = {
        "domain": promotion.id.domain,
        "source": str(promotion.source.id),
        "skills": sorted(skill.name for skill in promotion.promoted),
        "review": promotion.as_json(),
    }
    return Draft(promotion.id, "vertical", {skill.place: skill.file for skill in promotion.promoted}, details)


def _is_of_rounds(name: str) -> bool:
    return name.partition("/")[0] in ROUND_FOLDERS


def _successful_task(bank: Bank, registry: Registry, domain: str) -> Gate:
    """A run in this domain ended well, and its record is untouched."""
    tried = []
    for entry in registry.of_kind(Kind.TASK, domain):
        problem = next(_task_problems(bank, entry), None)
        if problem is None:
            return Gate("successful_task", True, str(entry.id))
        tried.append(f"{entry.id}: {problem}")
    return Gate("successful_task", False, "; ".join(tried) or f"domain '{domain}' has no task package")


def _task_problems(bank: Bank, entry: Entry) -> Iterator[str]:
    try:
        manifest = read_manifest(bank, entry.id)
        if manifest.get("status") != "success":
            yield f"status {manifest.get('status')}"
        yield from (problem.message for problem in verify_package(bank, entry.id))
    except SkillBankError as error:
        yield str(error)


def _lineage(bank: Bank, registry: Registry, domain: str, source: PackageId) -> Gate:
    """The rounds that led to this package are archived, with evidence, and the archive is untouched."""
    tried = []
    for entry in registry.of_kind(Kind.LINEAGE, domain):
        problem = next(_lineage_problems(bank, entry, source), None)
        if problem is None:
            return Gate("lineage_archive", True, str(entry.id))
        tried.append(f"{entry.id}: {problem}")
    return Gate("lineage_archive", False, "; ".join(tried) or f"domain '{domain}' has no lineage archive")


def _lineage_problems(bank: Bank, entry: Entry, source: PackageId) -> Iterator[str]:
    try:
        manifest = read_manifest(bank, entry.id)
        if manifest.get("source") != str(source):
            yield f"it is the lineage of {manifest.get('source')}"
        if not any("status.json" not in one.get("missing", []) for one in manifest.get("rounds", [])):
            yield "no round in it has a status.json"
        yield from (problem.message for problem in verify_package(bank, entry.id))
    except SkillBankError as error:
        yield str(error)


def _smoke(bank: Bank, registry: Registry, content: SkillSet, promoted: tuple[SkillFile, ...]) -> Gate:
    """The stable package and the candidate both work."""
    stable = registry.current.get((Kind.STABLE, ""))
    problems = [] if stable is None else list(smoke_test_package(bank, registry, stable))
    problems += smoke_test_skills(bank, content, promoted)
    if problems:
        return Gate("smoke_test", False, "; ".join(str(problem) for problem in problems))
    return Gate("smoke_test", True, f"{stable or 'no stable package'} and {content.id}")


def _nothing_private(promoted: tuple[SkillFile, ...]) -> Gate:
    """No promoted skill speaks of one run, one recorded session or one user's folders."""
    found = [
        f"{skill.place} names {match[0]}"
        for skill in promoted
        if (match := PRIVATE.search(skill.file.read_text("utf-8", errors="replace")))
    ]
    return Gate("nothing_private", not found, "; ".join(found) or f"{len(promoted)} skills and nothing else")
