"""Smoke tests: would an agent that loads this package today find working skills?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from astraflow.evolution.skillbank.bank import Bank
from astraflow.evolution.skillbank.compiler import compile_skill
from astraflow.evolution.skillbank.packages.freezing import verify_package
from astraflow.evolution.skillbank.packages.identity import FROZEN, Kind, PackageId
from astraflow.evolution.skillbank.packages.registry import Registry
from astraflow.evolution.skillbank.packages.skill_sets import SkillFile, SkillSet, read_skill_set
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.skill_format import TARGETS, check_skill
from astraflow.evolution.skillbank.text_file import read_text, split_front_matter

RUNTIME_GROUP = "rllm"
"""The group whose skills do the work; the others improve them."""


def packages_in_use(registry: Registry) -> list[PackageId]:
    """What a task can be given by selection: the current stable package and each domain's vertical one."""
    return [package_id for (kind, _), package_id in registry.current.items() if kind is not Kind.EXPERIMENTAL]


def smoke_test_bank(bank: Bank) -> Iterator[Problem]:
    """Every skill of the bank compiles."""
    for name in bank.skills:
        try:
            compile_skill(bank, name)
        except SkillBankError as error:
            yield from error.problems


def smoke_test_package(bank: Bank, registry: Registry, package_id: PackageId) -> Iterator[Problem]:
    """A package is whole, has every runtime skill of the bank that was there for it, and each is a valid skill."""
    try:
        content = read_skill_set(bank, registry, package_id)
        if package_id.kind in FROZEN:
            yield from verify_package(bank, package_id)
    except SkillBankError as error:
        yield from error.problems
        return
    yield from smoke_test_skills(bank, content, content.skills)


def smoke_test_skills(bank: Bank, content: SkillSet, skills: tuple[SkillFile, ...]) -> Iterator[Problem]:
    """The same for a choice of a package's skills: what a promotion would take."""
    present = {skill.name for skill in skills}
    for name in content.manifest.get("skills", []):
        if name not in present and bank.skills.get(name) and bank.skills[name].group == RUNTIME_GROUP:
            message = f"package '{content.id}' lacks its skill '{name}'"
            yield Problem(Code.MISSING_FILE, message, (str(content.id), name))
    if not skills:
        yield Problem(Code.MISSING_FILE, f"package '{content.id}' has no skills", (str(content.id),))
    for skill in skills:
        yield from _check_file(skill.file, skill.name)


def _check_file(file: Path, name: str) -> list[Problem]:
    try:
        front = split_front_matter(read_text(file), file)
    except SkillBankError as error:
        return list(error.problems)
    # a compiled file no longer says its target, so keys for one agent only are let through
    return check_skill(front.values, front.body, name, TARGETS[-1], file)
