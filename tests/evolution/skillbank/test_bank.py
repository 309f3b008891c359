"""A bank's description, and that no path in it leaves its root."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.evolution.skillbank import Bank, Code, SkillBankError, find_bank, write_skills


def code_of(action: object) -> Code:
    with pytest.raises(SkillBankError) as refused:
        action()  # type: ignore[operator]
    return refused.value.problems[0].code


def test_skills_groups_and_sections_are_read(make_bank) -> None:
    bank = make_bank({"one": ["p"], "two": []}).load()
    assert list(bank.skills) == ["one", "two"]
    assert bank.group_members("rllm") == ["one", "two"]
    source = bank.source("one")
    assert source.section_names == ("intro", "steps")
    assert [patch.id for patch in source.patches()] == ["p"]


def test_unknown_names_are_answered_with_the_nearest(make_bank) -> None:
    bank = make_bank({"rllm-train": []}).load()
    with pytest.raises(SkillBankError, match="did you mean 'rllm-train'"):
        bank.entry("rllm-trian")
    with pytest.raises(SkillBankError, match="unknown group 'rlm', did you mean 'rllm'"):
        bank.group_members("rlm")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("group: {}\n", "unknown key 'group', did you mean 'groups'"),
        (
            "groups: {g: {skills: {s: {outptu: x}}}}\n",
            r"unknown key 'groups\.g\.skills\.s\.outptu', did you mean 'output'",
        ),
        ("groups: {g: {skills: {../s: {}}}}\n", "'../s' must be letters"),
        ("groups: {g: {skills: {s: }}, h: {skills: {s: }}}\n", "skill 's' is in two groups: g and h"),
        ("version: 2\n", "version 2 is not known; this compiler reads version 1"),
        ("settings: {compiled: x}\n", r"unknown key 'settings\.compiled'"),
    ],
)
def test_what_is_wrong_in_bank_yaml_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bank.yaml").write_text(text)
    with pytest.raises(SkillBankError, match=message):
        Bank.load(tmp_path)


@pytest.mark.parametrize("output", ["../one/SKILL.md", "/etc/one/SKILL.md", ".claude/../../one/SKILL.md"])
def test_an_output_outside_the_root_is_refused(make_bank, output: str) -> None:
    files = make_bank()
    files.groups["rllm"]["one"]["output"] = output
    assert code_of(lambda: files.write().load().output_file("one")) is Code.OUTSIDE_ROOT


def test_a_link_out_of_the_root_is_followed_and_refused(make_bank, tmp_path_factory) -> None:
    files = make_bank()
    (files.repository / ".claude").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    assert code_of(lambda: files.load().output_file("one")) is Code.OUTSIDE_ROOT


def test_bases_and_snapshots_stay_in_the_bank(make_bank) -> None:
    files = make_bank()
    files.manifest("one", base="../../bank.yaml")
    assert code_of(lambda: files.load().source("one")) is Code.OUTSIDE_ROOT
    files.settings["compiled_dir"] = "../compiled"
    assert code_of(lambda: files.write().load()) is Code.OUTSIDE_ROOT


def test_the_outputs_folder_is_the_skills_name(make_bank) -> None:
    files = make_bank()
    files.groups["rllm"]["one"]["output"] = ".claude/skills/other/SKILL.md"
    assert code_of(lambda: files.write().load().output_file("one")) is Code.SKILL_FORMAT


def test_two_skills_never_share_an_output(make_bank) -> None:
    files = make_bank({"one": [], "two": []})
    files.groups["rllm"]["two"]["output"] = ".claude/skills/two/../one/SKILL.md"
    with pytest.raises(SkillBankError, match="skills one, two have one output"):
        files.write().load().output_file("one")


PIECES = st.sampled_from([".", "..", "a", "one", ".claude", "SKILL.md", "", "skill-bank", "base.md", "rllm"])


@given(output=st.lists(PIECES, min_size=1, max_size=6).map("/".join))
def test_whatever_an_output_says_nothing_but_one_skill_is_written(
    output: str, tmp_path_factory: pytest.TempPathFactory, bank_at, snapshot_of_tree
) -> None:
    outer = tmp_path_factory.mktemp("outer")
    files = bank_at(outer / "repository").skill("one")
    files.groups["rllm"]["one"]["output"] = output
    bank = files.write().load()
    before = snapshot_of_tree(outer)
    write_skills(bank, ["one"], force=True)
    after = snapshot_of_tree(outer)
    assert {name: after[name] for name in before} == before
    written = [name for name in after.keys() - before.keys() if after[name] != b"<folder>"]
    outputs = [name for name in written if not name.startswith("repository/skill-bank/compiled/")]
    assert all(name.startswith("repository/") and name.endswith("one/SKILL.md") for name in outputs)
    assert len(outputs) <= 1


def test_a_patch_is_found_by_its_id_also_under_another_file_name(make_bank) -> None:
    files = make_bank()
    files.patch("one", "p1").rename(files.root / "rllm/one/patches/other.md")
    (files.root / "rllm/one/patches/broken.md").write_text("---\nid: [p1\n")
    source = files.load().source("one")
    assert source.patch("p1").file.name == "other.md"
    with pytest.raises(SkillBankError, match="skill 'one' has no patch 'p2'"):
        source.patch("p2")


def test_the_nearest_bank_is_found(make_bank) -> None:
    files = make_bank()
    below = files.repository / "a" / "b"
    below.mkdir(parents=True)
    assert find_bank(below) == files.root
    assert find_bank(files.root / "rllm") == files.root
    (files.root / "bank.yaml").unlink()
    assert code_of(lambda: find_bank(below)) is Code.MISSING_FILE
