"""A package is whole or not there; its digests say what changed; its name is given once."""

import json
import shutil

import pytest

from astraflow.evolution.skillbank import Code, SkillBankError
from astraflow.evolution.skillbank.packages import PackageId, draft_stable, verify_package
from astraflow.evolution.skillbank.packages.freezing import files_below, read_manifest

BASE = PackageId.parse("stable:base")


def test_a_manifest_has_the_digest_of_every_file(workshop) -> None:
    folder = workshop.files.root / "packages/stable/base"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["id"] == "stable:base"
    assert manifest["created_at"] == "2026-01-02T03:04:05+00:00"
    assert set(manifest["files"]) == {name for name in files_below(folder) if name != "manifest.json"}
    assert list(verify_package(workshop.bank, BASE)) == []


def test_verify_names_what_was_changed_removed_and_added(workshop) -> None:
    folder = workshop.files.root / "packages/stable/base/skills"
    (folder / "rllm/rllm-run.md").write_text("other\n")
    (folder / "rllm/rllm-train.md").unlink()
    (folder / "notes.txt").write_text("new\n")
    problems = list(verify_package(workshop.bank, BASE))
    assert {problem.code for problem in problems} == {Code.DIGEST}
    assert [(problem.ids[1], problem.message.split("'")[-1].split(" since")[0]) for problem in problems] == [
        ("skills/notes.txt", " was added"),
        ("skills/rllm/rllm-run.md", " was changed"),
        ("skills/rllm/rllm-train.md", " is missing"),
    ]


@pytest.mark.parametrize("dry_run", [False, True])
def test_names_are_not_reused_even_when_one_trace_of_them_is_gone(workshop, snapshot_of_tree, dry_run: bool) -> None:
    draft = draft_stable(workshop.bank, "base")
    before = snapshot_of_tree(workshop.repository)
    with pytest.raises(SkillBankError, match="package 'stable:base' exists already; names are not reused") as refused:
        workshop.make(draft, dry_run)
    assert refused.value.problems[0].ids == ("stable:base",)
    assert snapshot_of_tree(workshop.repository) == before
    (workshop.files.root / "registry.json").unlink()
    with pytest.raises(SkillBankError, match="exists already"):
        workshop.make(draft, dry_run)


def test_a_removed_folder_does_not_free_the_name(workshop) -> None:
    shutil.rmtree(workshop.files.root / "packages/stable/base")
    with pytest.raises(SkillBankError, match="exists already"):
        workshop.make(draft_stable(workshop.bank, "base"))


def test_a_failure_while_writing_leaves_no_package(workshop, snapshot_of_tree) -> None:
    draft = draft_stable(workshop.bank, "next")
    shutil.rmtree(workshop.files.root / "compiled")
    before = snapshot_of_tree(workshop.repository)
    with pytest.raises(FileNotFoundError):
        workshop.make(draft)
    assert snapshot_of_tree(workshop.repository) == before


def test_a_link_is_not_frozen(workshop, tmp_path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to("/etc")
    with pytest.raises(SkillBankError, match="a link cannot be frozen"):
        files_below(tmp_path / "tree")


def test_packages_that_a_link_leads_away_are_refused(workshop, tmp_path_factory) -> None:
    (workshop.files.root / "packages/vertical").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(SkillBankError, match="outside its root"):
        list(verify_package(workshop.bank, PackageId.parse("vertical:math:x")))


def test_a_manifest_of_another_package_is_refused(workshop) -> None:
    file = workshop.files.root / "packages/stable/base/manifest.json"
    file.write_text(file.read_text().replace("stable:base", "stable:other"))
    with pytest.raises(SkillBankError, match="manifest of 'stable:base' says id 'stable:other'"):
        read_manifest(workshop.bank, BASE)
