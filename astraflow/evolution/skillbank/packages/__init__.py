"""Packages: skills frozen for everybody, for a domain, with a run, or with the rounds that made them.

snapshot ─► stable ─► experimental ─(gates)─► vertical
               └─► task (a run)      └─► lineage (rounds)
"""

from astraflow.evolution.skillbank.packages.freezing import Draft, make_package, verify_package
from astraflow.evolution.skillbank.packages.identity import Kind, PackageId
from astraflow.evolution.skillbank.packages.lineage import draft_lineage, parse_rounds
from astraflow.evolution.skillbank.packages.promotion import Promotion, draft_vertical, review
from astraflow.evolution.skillbank.packages.registry import Entry, Registry, load_registry
from astraflow.evolution.skillbank.packages.skill_sets import draft_experimental, draft_stable
from astraflow.evolution.skillbank.packages.smoke import packages_in_use, smoke_test_bank, smoke_test_package
from astraflow.evolution.skillbank.packages.task_package import draft_task, run_folder

__all__ = [
    "Draft",
    "Entry",
    "Kind",
    "PackageId",
    "Promotion",
    "Registry",
    "draft_experimental",
    "draft_lineage",
    "draft_stable",
    "draft_task",
    "draft_vertical",
    "load_registry",
    "make_package",
    "packages_in_use",
    "parse_rounds",
    "review",
    "run_folder",
    "smoke_test_bank",
    "smoke_test_package",
    "verify_package",
]
