"""A squash: the compiled text stays, the anchors stay, the patches are part of the base."""

import pytest

from astraflow.evolution.skillbank import Code, PatchStatus, SkillBankError, compile_skill, write_skills
from astraflow.evolution.skillbank.squash import squash_skill


def test_the_compiled_text_stays_byte_for_byte(make_bank) -> None:
    files = make_bank({"one": ["new", "app", "pre", "rep"]})
    files.patch("one", "new", "N.", action="insert_after")
    files.patch("one", "pre", "P.", action="prepend", target_section="new")
    files.patch("one", "rep", "R.", action="replace", target_section="steps")
    bank = files.load()
    write_skills(bank, ["one"])
    before = files.output("one").read_bytes()
    assert squash_skill(bank, "one").patches == ("new", "app", "pre", "rep")
    after = files.load()
    report = write_skills(after, ["one"])
    assert (report.new_snapshot, report.problems) == (False, ())
    assert files.output("one").read_bytes() == before
    source = after.source("one")
    assert source.manifest.active == ()
    assert source.section_names == ("intro", "new", "steps")
    assert {patch.status for patch in source.patches()} == {PatchStatus.ARCHIVED}


def test_a_later_patch_can_target_what_was_squashed(make_bank) -> None:
    files = make_bank({"one": ["new"]})
    files.patch("one", "new", "N.", action="insert_after")
    squash_skill(files.load(), "one")
    files.patch("one", "later", "L.", target_section="new")
    files.manifest("one", active=["later"])
    assert "N.\n\nL.\n" in compile_skill(files.load(), "one").text


def test_what_depends_on_a_squashed_patch_still_may(make_bank) -> None:
    files = make_bank({"one": ["a"], "two": ["b"]})
    files.patch("two", "b", depends_on=["one:a"])
    squash_skill(files.load(), "one")
    assert "Text of b" in compile_skill(files.load(), "two").text
    files.patch("one", "a", status="archived")
    with pytest.raises(SkillBankError, match="depends on 'one:a', which is not active"):
        compile_skill(files.load(), "two")


def test_a_profile_that_leaves_a_patch_out_refuses_the_squash(make_bank, snapshot_of_tree) -> None:
    files = make_bank({"one": ["a", "b"]})
    files.manifest("one", active=["a", "b"], profiles={"small": {"active": ["a"]}})
    before = snapshot_of_tree(files.repository)
    with pytest.raises(SkillBankError, match="profile 'small' leaves out b") as refused:
        squash_skill(files.load(), "one")
    assert (refused.value.problems[0].code, refused.value.problems[0].ids) == (Code.SQUASH, ("small", "b"))
    assert snapshot_of_tree(files.repository) == before


def test_profiles_keep_their_text(make_bank) -> None:
    files = make_bank({"one": ["a", "b"]})
    files.patch("one", "c")
    files.manifest("one", active=["a", "b"], profiles={"more": {"active": ["a", "b", "c"]}})
    before = compile_skill(files.load(), "one", "more").text
    squash_skill(files.load(), "one")
    assert compile_skill(files.load(), "one", "more").text == before


def test_a_dry_run_and_no_patches_change_nothing(make_bank, snapshot_of_tree) -> None:
    files = make_bank({"one": ["a"], "two": []})
    before = snapshot_of_tree(files.repository)
    assert squash_skill(files.load(), "one", dry_run=True).patches == ("a",)
    assert squash_skill(files.load(), "two").patches == ()
    assert snapshot_of_tree(files.repository) == before


def test_a_hand_edited_skill_is_not_squashed(make_bank) -> None:
    files = make_bank({"one": ["a"]})
    write_skills(files.load(), ["one"])
    files.output("one").write_text("mine\n")
    base = (files.root / "rllm/one/base.md").read_bytes()
    with pytest.raises(SkillBankError, match="edited by hand"):
        squash_skill(files.load(), "one")
    assert (files.root / "rllm/one/base.md").read_bytes() == base
