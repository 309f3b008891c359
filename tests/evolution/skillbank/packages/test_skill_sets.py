"""Stable and experimental packages."""

import shutil

import pytest

from astraflow.evolution.skillbank import SkillBankError, write_skills
from astraflow.evolution.skillbank.packages import PackageId, draft_experimental, draft_stable
from astraflow.evolution.skillbank.packages.skill_sets import read_skill_set


def experimental(workshop, name: str = "e", source: str | None = None):
    origin = PackageId.parse(source) if source else None
    return draft_experimental(workshop.bank, workshop.registry, name, "math", origin)


def test_a_stable_package_is_the_latest_snapshot(workshop) -> None:
    workshop.files.manifest("rllm-run", active=["p"])
    workshop.files.patch("rllm-run", "p")
    write_skills(workshop.bank, ["rllm-run"])
    entry = workshop.make(draft_stable(workshop.bank, "next"))
    assert str(workshop.registry.select("math")) == str(entry.id) == "stable:next"
    folder = workshop.files.root / "packages/stable/next/skills"
    assert "Text of p" in (folder / "rllm/rllm-run.md").read_text()
    assert (folder / "traj/traj-loop.md").is_file()
    base = workshop.files.root / "packages/stable/base/skills/rllm/rllm-run.md"
    assert "Text of p" not in base.read_text()


def test_sources_that_differ_from_the_snapshot_are_a_warning(workshop) -> None:
    assert draft_stable(workshop.bank, "x").warnings == ()
    workshop.files.patch("rllm-run", "p")
    workshop.files.manifest("rllm-run", active=["p"])
    (workshop.files.root / "rllm/rllm-train/base.md").unlink()
    warnings = draft_stable(workshop.bank, "x").warnings
    assert [warning.ids for warning in warnings] == [("stable:x", "rllm-run"), ("stable:x", "rllm-train")]


def test_without_a_snapshot_there_is_nothing_to_freeze(workshop) -> None:
    shutil.rmtree(workshop.files.root / "compiled")
    with pytest.raises(SkillBankError, match="compile with --all first"):
        draft_stable(workshop.bank, "x")


def test_an_experimental_package_is_a_copy_of_the_selection_or_of_what_is_named(workshop) -> None:
    draft = experimental(workshop)
    assert (draft.details["source"], draft.details["domain"]) == ("stable:base", "math")
    workshop.make(draft)
    assert experimental(workshop, "f", "stable:base").details["skills"] == ["rllm-run", "rllm-train", "traj-loop"]
    with pytest.raises(SkillBankError, match="copied from a stable or vertical one, not from 'experimental:math:e'"):
        experimental(workshop, "f", "experimental:math:e")
    with pytest.raises(SkillBankError, match="no package 'stable:none'"):
        experimental(workshop, "f", "stable:none")


def test_files_that_are_no_skills_are_told_apart(workshop) -> None:
    workshop.make(experimental(workshop))
    folder = workshop.files.root / "packages/experimental/math/e"
    (folder / "run.log").write_text("x")
    (folder / "skills/rllm/data.json").write_text("{}")
    content = read_skill_set(workshop.bank, workshop.registry, PackageId.parse("experimental:math:e"))
    assert content.others == ("run.log", "skills/rllm/data.json")
    assert [skill.place for skill in content.skills] == [
        "skills/rllm/rllm-run.md",
        "skills/rllm/rllm-train.md",
        "skills/traj/traj-loop.md",
    ]
