"""Changes to sources: whole, or not at all."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from astraflow.evolution.skillbank import (
    Action,
    Code,
    Patch,
    PatchStatus,
    SkillBankError,
    activate,
    add_patch,
    compile_skill,
    deactivate,
    set_patch_fields,
    write_skills,
)


def proposal(patch_id: str = "new", **changes) -> Patch:
    values = {"target_section": "intro", "action": Action.APPEND, "body": "New.", "status": PatchStatus.PROPOSED}
    return Patch(**{"id": patch_id, **values, **changes})


def test_a_patch_is_added_judged_activated_and_taken_out_again(make_bank) -> None:
    files = make_bank({"one": ["a"]})
    plain = compile_skill(files.load(), "one").text
    added = add_patch(files.load(), "one", proposal(extra={"evidence_rounds": [1, 2]}))
    assert added.file == files.root / "rllm/one/patches/new.md"
    assert compile_skill(files.load(), "one").text == plain
    set_patch_fields(files.load(), "one", "new", {"status": "evaluated", "effect": 0.25})
    patch = files.load().source("one").patch("new")
    assert (patch.status, patch.extra) == (PatchStatus.EVALUATED, {"evidence_rounds": [1, 2], "effect": 0.25})
    activate(files.load(), "one", "new")
    assert files.load().source("one").manifest.active == ("a", "new")
    assert "Text of a.\n\nNew.\n" in compile_skill(files.load(), "one").text
    deactivate(files.load(), "one", "new", PatchStatus.REJECTED)
    assert files.load().source("one").patch("new").status is PatchStatus.REJECTED
    assert compile_skill(files.load(), "one").text == plain


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        (proposal("a"), Code.NAME_TAKEN),
        (proposal(target_section="nowhere"), Code.UNKNOWN_SECTION),
        (proposal(body="<!-- section:x -->\n<!-- /section:x -->"), Code.MALFORMED_ANCHOR),
        (proposal("../../escape"), Code.MALFORMED_FILE),
    ],
)
def test_a_patch_that_cannot_be_is_not_written(make_bank, snapshot_of_tree, patch: Patch, code: Code) -> None:
    files = make_bank({"one": ["a"]})
    before = snapshot_of_tree(files.repository)
    with pytest.raises(SkillBankError) as refused:
        add_patch(files.load(), "one", patch)
    assert refused.value.problems[0].code is code
    assert snapshot_of_tree(files.repository) == before


def test_what_would_not_compile_is_not_activated(make_bank, snapshot_of_tree) -> None:
    files = make_bank({"one": ["a"]})
    files.patch("one", "b", status="proposed", conflicts_with=["a"])
    before = snapshot_of_tree(files.repository)
    with pytest.raises(SkillBankError, match="conflicts with 'a'"):
        activate(files.load(), "one", "b")
    assert snapshot_of_tree(files.repository) == before


def test_a_field_that_makes_the_patch_unreadable_is_not_written(make_bank, snapshot_of_tree) -> None:
    files = make_bank({"one": ["a"]})
    before = snapshot_of_tree(files.repository)
    with pytest.raises(SkillBankError, match="unknown status 'great'"):
        set_patch_fields(files.load(), "one", "a", {"status": "great"})
    assert snapshot_of_tree(files.repository) == before


def test_those_who_change_a_bank_at_once_lose_nothing(make_bank) -> None:
    files = make_bank({"one": [], "two": []})
    names = [f"p{index}" for index in range(8)]

    def work(name: str) -> None:
        bank = files.load()
        add_patch(bank, "one", proposal(name, body=f"Text of {name}."))
        activate(bank, "one", name)
        write_skills(bank, ["one"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, names))
    assert sorted(files.load().source("one").manifest.active) == names
    text = files.output("one").read_text()
    assert all(f"Text of {name}." in text for name in names)
    assert write_skills(files.load(), ["one"]).new_snapshot is False
