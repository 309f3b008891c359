"""Would an agent that loads a package find working skills?"""

from astraflow.evolution.skillbank import Code
from astraflow.evolution.skillbank.packages import (
    PackageId,
    draft_experimental,
    packages_in_use,
    smoke_test_bank,
    smoke_test_package,
)

BASE = PackageId.parse("stable:base")


def codes(problems) -> list[Code]:
    return [problem.code for problem in problems]


def test_a_whole_package_and_a_bank_that_compiles_pass(workshop) -> None:
    assert list(smoke_test_package(workshop.bank, workshop.registry, BASE)) == []
    assert list(smoke_test_bank(workshop.bank)) == []


def test_a_bank_that_does_not_compile_fails(workshop) -> None:
    (workshop.files.root / "rllm/rllm-run/base.md").unlink()
    assert codes(smoke_test_bank(workshop.bank)) == [Code.MISSING_FILE]


def test_a_package_that_lost_a_runtime_skill_fails(workshop) -> None:
    (workshop.files.root / "packages/stable/base/skills/rllm/rllm-run.md").unlink()
    problems = list(smoke_test_package(workshop.bank, workshop.registry, BASE))
    assert codes(problems) == [Code.DIGEST, Code.MISSING_FILE]
    assert problems[1].ids == ("stable:base", "rllm-run")


def test_an_experimental_package_may_change_but_must_hold_valid_skills(workshop) -> None:
    workshop.make(draft_experimental(workshop.bank, workshop.registry, "e", "math", None))
    package = PackageId.parse("experimental:math:e")
    skill = workshop.files.root / "packages/experimental/math/e/skills/rllm/rllm-run.md"
    skill.write_text(skill.read_text() + "\nMore.\n")
    assert list(smoke_test_package(workshop.bank, workshop.registry, package)) == []
    skill.write_text(skill.read_text().replace("name: rllm-run", "name: Rllm"))
    assert set(codes(smoke_test_package(workshop.bank, workshop.registry, package))) == {Code.SKILL_FORMAT}


def test_an_unknown_package_is_a_problem(workshop) -> None:
    missing = PackageId.parse("stable:none")
    assert codes(smoke_test_package(workshop.bank, workshop.registry, missing)) == [Code.UNKNOWN_PACKAGE]


def test_in_use_is_what_selection_can_give(workshop) -> None:
    workshop.make(draft_experimental(workshop.bank, workshop.registry, "e", "math", None))
    assert packages_in_use(workshop.registry) == [BASE]
