"""A patch file: what it must say, and that it is written as it was read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.evolution.skillbank.patch import Action, Patch, PatchStatus
from astraflow.evolution.skillbank.problem import Code, SkillBankError

FILE = Path("001-name.md")


def test_a_patch_is_read_with_defaults() -> None:
    patch = Patch.parse("---\ntarget_section: intro\naction: append\nscore: 0.3\n---\n\nText\n\nmore\n\n", FILE)
    assert (patch.id, patch.action, patch.status, patch.body) == (
        "001-name",
        Action.APPEND,
        PatchStatus.ACCEPTED,
        "Text\n\nmore",
    )
    assert patch.extra == {"score": 0.3}
    assert patch.body_line == 7


def test_active_is_another_word_for_accepted() -> None:
    text = "---\ntarget_section: a\naction: append\nstatus: active\n---\nx\n"
    assert Patch.parse(text, FILE).status is PatchStatus.ACCEPTED


@pytest.mark.parametrize(
    ("header", "code", "message"),
    [
        ("action: merge", Code.UNKNOWN_ACTION, "patch '001-name' has the unknown action 'merge'; known: replace"),
        ("status: done", Code.MALFORMED_FILE, "unknown status 'done'"),
        ("id: ../../x\naction: append", Code.MALFORMED_FILE, "patch id '../../x'"),
        ("id: 001\naction: append", Code.MALFORMED_FILE, "'id' must be text, not 1"),
        ("action: append\ndepends_on: p1", Code.MALFORMED_FILE, "'depends_on' must be a list"),
    ],
)
def test_what_is_wrong_is_named(header: str, code: Code, message: str) -> None:
    action = "" if "action" in header else "action: append\n"
    with pytest.raises(SkillBankError) as refused:
        Patch.parse(f"---\ntarget_section: a\n{action}{header}\n---\nx\n", FILE)
    assert refused.value.problems[0].code is code
    assert message in str(refused.value)


def test_a_patch_holds_no_anchors() -> None:
    text = "---\ntarget_section: a\naction: append\n---\n<!-- section:b -->\n<!-- /section:b -->\n"
    with pytest.raises(SkillBankError, match="holds a section anchor") as refused:
        Patch.parse(text, FILE)
    assert refused.value.problems[0].ids == ("001-name",)


WORDS = st.from_regex(r"[A-Za-z][\w .,:'\"#-]{0,30}[a-z]", fullmatch=True)


@given(
    st.builds(
        Patch,
        id=st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True),
        target_section=st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True),
        action=st.sampled_from(Action),
        body=st.lists(WORDS, min_size=1, max_size=3).map("\n".join),
        description=WORDS,
        status=st.sampled_from(PatchStatus),
        depends_on=st.lists(WORDS, max_size=3).map(tuple),
        conflicts_with=st.lists(WORDS, max_size=3).map(tuple),
        superseded_by=st.just("") | WORDS,
        extra=st.dictionaries(
            st.from_regex(r"[x-z]{1,8}", fullmatch=True),
            st.integers() | WORDS | st.lists(WORDS, min_size=1),
            max_size=3,
        ),
    )
)
def test_what_is_written_reads_back(patch: Patch) -> None:
    again = Patch.parse(patch.render(), FILE)
    assert again.render() == patch.render()
    for field in ("id", "target_section", "action", "body", "description", "status", "depends_on", "extra"):
        assert getattr(again, field) == getattr(patch, field)
