"""A vertical package passes gates, each of which can be closed."""

import shutil

import pytest

from astraflow.evolution.skillbank import Code, SkillBankError
from astraflow.evolution.skillbank.packages import (
    PackageId,
    draft_experimental,
    draft_lineage,
    draft_stable,
    draft_task,
    draft_vertical,
    review,
)


@pytest.fixture
def ready(workshop):
    """Everything that a promotion of experimental:math:e needs."""
    workshop.make(draft_experimental(workshop.bank, workshop.registry, "e", "math", None))
    workshop.make(draft_task(workshop.bank, workshop.registry, "t", workshop.run()))
    workshop.round(1)
    workshop.make(draft_lineage(workshop.bank, workshop.registry, "l", "math", [1]))
    return workshop


def reviewed(workshop):
    return review(workshop.bank, workshop.registry, "v", "math")


def closed(workshop) -> set[str]:
    return {gate.name for gate in reviewed(workshop).gates if not gate.passed}


def test_with_every_gate_open_the_domains_skills_are_promoted(ready) -> None:
    entry = ready.make(draft_vertical(reviewed(ready)))
    folder = ready.files.root / "packages/vertical/math/v/skills"
    assert sorted(path.name for path in folder.rglob("*.md")) == ["rllm-run.md", "rllm-train.md"]
    assert str(ready.registry.select("math")) == str(entry.id) == "vertical:math:v"
    assert str(ready.registry.select("code")) == "stable:base"


def test_a_review_classifies_and_writes_nothing(ready, snapshot_of_tree) -> None:
    private = ready.files.root / "packages/experimental/math/e/run/config.json"
    private.parent.mkdir()
    private.write_text("{}")
    evidence = ready.files.root / "packages/experimental/math/e/rounds/round_1/status.json"
    evidence.parent.mkdir(parents=True)
    evidence.write_text("{}")
    before = snapshot_of_tree(ready.repository)
    said = reviewed(ready).as_json()
    assert said["classification"] == {
        "vertical_candidates": ["rllm-run", "rllm-train"],
        "excluded_from_vertical": ["traj-loop"],
        "task_package_only": ["run/config.json"],
        "lineage_archive_only": ["rounds/round_1/status.json"],
    }
    assert said["may_be_promoted"] is True
    assert snapshot_of_tree(ready.repository) == before
    assert all(name.startswith("skills/rllm/") for name in draft_vertical(reviewed(ready)).files)


class TestGates:
    """Each gate, closed in each way it can be."""

    def test_no_task_package(self, ready) -> None:
        registry = ready.files.root / "registry.json"
        registry.write_text(
            registry.read_text().replace('"domain": "math",\n      "source": "stable:base"', '"domain": "x"')
        )
        assert closed(ready) == {"successful_task"}

    def test_a_task_package_of_a_run_that_failed(self, workshop) -> None:
        workshop.make(draft_experimental(workshop.bank, workshop.registry, "e", "math", None))
        run = workshop.run()
        (run / "eval_metrics.json").unlink()
        workshop.make(draft_task(workshop.bank, workshop.registry, "t", run))
        assert closed(workshop) == {"successful_task", "lineage_archive"}

    def test_a_task_package_that_was_touched(self, ready) -> None:
        (ready.files.root / "packages/task-packages/t/run/eval_metrics.json").write_text('{"accuracy": 1.0}')
        assert closed(ready) == {"successful_task"}

    def test_no_lineage_archive(self, ready) -> None:
        shutil.rmtree(ready.files.root / "packages/lineage-archive")
        assert closed(ready) == {"lineage_archive"}

    def test_a_lineage_archive_of_another_package(self, ready) -> None:
        ready.make(draft_experimental(ready.bank, ready.registry, "f", "math", None))
        assert closed(ready) == {"lineage_archive"}
        gate = next(gate for gate in reviewed(ready).gates if gate.name == "lineage_archive")
        assert gate.reason == "lineage:math:l: it is the lineage of experimental:math:e"

    def test_a_lineage_archive_without_evidence(self, workshop) -> None:
        workshop.make(draft_experimental(workshop.bank, workshop.registry, "e", "math", None))
        workshop.make(draft_task(workshop.bank, workshop.registry, "t", workshop.run()))
        workshop.make(draft_lineage(workshop.bank, workshop.registry, "l", "math", [7]))
        assert closed(workshop) == {"lineage_archive"}

    def test_a_candidate_that_is_no_valid_skill(self, ready) -> None:
        skill = ready.files.root / "packages/experimental/math/e/skills/rllm/rllm-run.md"
        skill.write_text("no front-matter\n")
        assert closed(ready) == {"smoke_test"}

    def test_a_stable_package_that_was_touched(self, ready) -> None:
        (ready.files.root / "packages/stable/base/skills/rllm/rllm-run.md").write_text("x\n")
        assert closed(ready) == {"smoke_test"}

    @pytest.mark.parametrize(
        "private",
        ["rllm_train/output/runs/run_17/config.json", "traj_opt/output/rllm/raw/abc/events.jsonl", "/home/ann/data"],
    )
    def test_a_skill_that_names_what_one_task_has(self, ready, private: str) -> None:
        skill = ready.files.root / "packages/experimental/math/e/skills/rllm/rllm-run.md"
        skill.write_text(f"{skill.read_text()}\nSee {private}.\n")
        assert closed(ready) == {"nothing_private"}

    def test_a_closed_gate_is_an_error_that_names_it(self, ready) -> None:
        shutil.rmtree(ready.files.root / "packages/lineage-archive")
        with pytest.raises(SkillBankError, match=r"gate 'lineage_archive' of 'vertical:math:v' is closed") as refused:
            draft_vertical(reviewed(ready))
        assert [problem.code for problem in refused.value.problems] == [Code.GATE]


def test_only_experimental_packages_of_the_domain_are_promoted(ready) -> None:
    for source, message in (("stable:base", "'stable:base' is none"), ("experimental:math:e", "is of domain 'math'")):
        with pytest.raises(SkillBankError, match=message):
            review(ready.bank, ready.registry, "v", "code", PackageId.parse(source))
    with pytest.raises(SkillBankError, match="domain 'code' has none"):
        review(ready.bank, ready.registry, "v", "code")


def test_an_experimental_package_may_start_from_a_vertical_one(ready) -> None:
    ready.make(draft_vertical(reviewed(ready)))
    ready.make(draft_stable(ready.bank, "later"))
    draft = draft_experimental(ready.bank, ready.registry, "second", "math", None)
    assert draft.details["source"] == "vertical:math:v"
