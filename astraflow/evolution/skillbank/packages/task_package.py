"""A task package: one run, frozen with the skills that it used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astraflow.evolution.skillbank.bank import Bank, inside
from astraflow.evolution.skillbank.packages.freezing import Draft
from astraflow.evolution.skillbank.packages.identity import PART, Kind, PackageId
from astraflow.evolution.skillbank.packages.registry import Registry
from astraflow.evolution.skillbank.packages.run_evidence import read_run
from astraflow.evolution.skillbank.packages.skill_sets import read_skill_set
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError

RUNS = Path("rllm_train", "output", "runs")
"""Where `--run-id` looks, from the repository's root."""
DOMAIN_KEYS = ("domain", "task_type", "task")
PACKAGE_KEY = "skill_package_id"
"""Key of a run's configuration: the package whose skills it used."""


def run_folder(bank: Bank, run_id: str) -> Path:
    """The directory of a run by its id."""
    runs = bank.output_root / RUNS
    if not PART.fullmatch(run_id):
        message = f"run id '{run_id}' must be letters, digits, '.', '_' and '-'"
        raise SkillBankError(Problem(Code.OUTSIDE_ROOT, message, (run_id,)))
    return inside(runs, runs / run_id, f"run '{run_id}'", runs, run_id)


def draft_task(
    bank: Bank, registry: Registry, name: str, run: Path, domain: str = "", source: PackageId | None = None
) -> Draft:
    """Freeze a run: configuration, log, trajectories, evaluation, skills.

    Without a domain or source the run's configuration says which, else the domain's selection. A run that is no
    success is frozen as `incomplete` with what it lacks; it opens no gate.
    """
    package_id = PackageId(Kind.TASK, "", name)
    evidence = read_run(run)
    domain = domain or _first_text(evidence.config, DOMAIN_KEYS)
    if not domain:
        message = f"the run does not say its domain ({', '.join(DOMAIN_KEYS)}); give --domain"
        raise SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message, (str(package_id),), run))
    named = _first_text(evidence.config, (PACKAGE_KEY,))
    origin = source or (PackageId.parse(named) if named else registry.select(domain))
    skills = read_skill_set(bank, registry, origin)
    details = {
        "domain": domain,
        "source": str(origin),
        "run": run.name,
        "skills": sorted(skill.name for skill in skills.skills),
        "lacks": [problem.message for problem in evidence.shortcomings],
        "weights": dict(evidence.weights),
    }
    return Draft(package_id, evidence.outcome, {**evidence.files, **skills.files}, details, evidence.shortcomings)


def _first_text(values: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return next((values[key] for key in keys if isinstance(values.get(key), str) and values[key]), "")
