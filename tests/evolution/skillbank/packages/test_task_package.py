"""A run is frozen with its skills; what it lacks is said."""

import json
from pathlib import Path

import pytest

from astraflow.evolution.skillbank import Code, SkillBankError
from astraflow.evolution.skillbank.packages import (
    PackageId,
    draft_experimental,
    draft_task,
    run_folder,
    verify_package,
)


def draft(workshop, run: Path, **options):
    return draft_task(workshop.bank, workshop.registry, "t", run, **options)


def test_a_finished_run_is_frozen_whole_and_without_its_secrets(workshop) -> None:
    run = workshop.run()
    entry = workshop.make(draft(workshop, run))
    folder = workshop.files.root / "packages/task-packages/t"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (entry.status, manifest["domain"], manifest["source"], manifest["run"]) == (
        "success",
        "math",
        "stable:base",
        "run_1",
    )
    assert set(manifest["files"]) == {
        "run/config.json",
        "run/training_log.txt",
        "run/trajectories/step_0001.jsonl",
        "run/eval_metrics.json",
        "skills/rllm/rllm-run.md",
        "skills/rllm/rllm-train.md",
        "skills/traj/traj-loop.md",
    }
    assert list(manifest["weights"]) == ["model.safetensors"]
    assert list(verify_package(workshop.bank, PackageId.parse("task:t"))) == []
    (folder / "run/config.json").write_text("{}")
    assert [p.ids for p in verify_package(workshop.bank, PackageId.parse("task:t"))] == [("task:t", "run/config.json")]


@pytest.mark.parametrize(
    ("damage", "lacks"),
    [
        (lambda run: (run / "eval_metrics.json").unlink(), "eval"),
        (lambda run: (run / "eval_metrics.json").write_text('{"accuracy": NaN}'), "no finite evaluation result"),
        (lambda run: (run / "eval_metrics.json").write_text('{"accuracy": 1, "status": "failed"}'), "status 'failed'"),
        (lambda run: (run / "training_log.txt").write_text(""), "log"),
        (lambda run: (run / "trajectories/step_0001.jsonl").unlink(), "trajectories"),
        (lambda run: (run / "config.json").write_bytes(b""), "JSON"),
    ],
)
def test_what_a_run_lacks_is_said_and_makes_it_no_success(workshop, damage, lacks: str) -> None:
    run = workshop.run()
    damage(run)
    if lacks == "JSON":
        with pytest.raises(SkillBankError, match="not valid JSON"):
            draft(workshop, run, domain="math")
        return
    made = draft(workshop, run, domain="math")
    assert made.status == "incomplete"
    assert any(lacks in problem.message for problem in made.warnings)
    assert made.details["lacks"] == [problem.message for problem in made.warnings]


def test_a_run_of_astraflow_is_read_as_well(workshop, tmp_path) -> None:
    run = tmp_path / "runs" / "quickstart"
    for name, text in (
        ("config.yaml", "seed: 1\n"),
        ("logs/dataflow.log", "line\n"),
        ("trajectories/step_000001.jsonl", "{}\n"),
        ("summary.json", '{"accuracy_after": {"greedy": 0.98}}'),
        ("metrics.jsonl", "{}\n"),
        ("token", "secret"),
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    made = draft(workshop, run, domain="math")
    assert made.status == "success"
    assert "run/logs/dataflow.log" in made.files
    assert not any("token" in name for name in made.files)
    with pytest.raises(SkillBankError, match="does not say its domain"):
        draft(workshop, run)


def test_the_run_names_its_skills_unless_told_otherwise(workshop) -> None:
    workshop.make(draft_experimental(workshop.bank, workshop.registry, "e", "math", None))
    run = workshop.run(skill_package_id="experimental:math:e")
    assert draft(workshop, run).details["source"] == "experimental:math:e"
    assert draft(workshop, run, source=PackageId.parse("stable:base")).details["source"] == "stable:base"
    with pytest.raises(SkillBankError, match="'task:t' is no skill set"):
        draft(workshop, run, source=PackageId.parse("task:t"))


def test_a_run_id_is_no_path(workshop) -> None:
    assert run_folder(workshop.bank, "run_1") == workshop.repository / "rllm_train/output/runs/run_1"
    for wrong in ("../../etc", "/etc", ""):
        with pytest.raises(SkillBankError) as refused:
            run_folder(workshop.bank, wrong)
        assert refused.value.problems[0].code is Code.OUTSIDE_ROOT


def test_a_run_that_is_not_there(workshop, tmp_path) -> None:
    with pytest.raises(SkillBankError, match="no such run directory"):
        draft(workshop, tmp_path / "none")


@pytest.mark.parametrize("place", ["trajectories/all.jsonl", "metrics.jsonl", "logs"])
def test_a_link_in_a_run_is_refused(workshop, place: str) -> None:
    run = workshop.run()
    (run / place).symlink_to("/etc")
    with pytest.raises(SkillBankError, match="a link cannot be frozen"):
        draft(workshop, run)


def test_linked_weights_are_named_by_what_they_are(workshop, tmp_path) -> None:
    run = workshop.run()
    (run / "final_model").rename(tmp_path / "checkpoint")
    (run / "final_model").symlink_to(tmp_path / "checkpoint")
    assert list(draft(workshop, run).details["weights"]) == ["model.safetensors"]
