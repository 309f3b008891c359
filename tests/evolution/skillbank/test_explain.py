"""Where a section's text comes from."""

import pytest

from astraflow.evolution.skillbank import SkillBankError
from astraflow.evolution.skillbank.explain import explain


def test_each_part_is_named_with_file_and_line(make_bank) -> None:
    files = make_bank({"one": ["post", "pre"]})
    files.patch("one", "pre", "P.", action="prepend", description="why", confidence="high", status="accepted")
    said = explain(files.load(), "one", "intro").as_json()
    assert [(part["origin"], part["text"]) for part in said["parts"]] == [
        ("pre", "P."),
        ("base", "The intro."),
        ("post", "Text of post."),
    ]
    first, second, _ = said["parts"]
    assert (first["action"], first["description"], first["evidence"]) == ("prepend", "why", {"confidence": "high"})
    lines = (files.root / "rllm/one/base.md").read_text().split("\n")
    assert lines[second["line"] - 1] == "The intro."
    assert said["text"] == "P.\n\nThe intro.\n\nText of post."
    assert said["replaced"] == []


def test_what_a_replace_threw_away_is_said(make_bank) -> None:
    files = make_bank({"one": ["a", "r"]})
    files.patch("one", "r", action="replace")
    assert explain(files.load(), "one", "intro").as_json()["replaced"] == ["base", "a"]


def test_an_inserted_section_names_its_patch(make_bank) -> None:
    files = make_bank({"one": ["new"]})
    files.patch("one", "new", action="insert_after")
    assert [part["origin"] for part in explain(files.load(), "one", "new").as_json()["parts"]] == ["new"]


def test_an_unknown_section_is_answered_with_the_known_ones(make_bank) -> None:
    with pytest.raises(SkillBankError, match=r"no section 'step', did you mean 'steps'\?; known: intro, steps"):
        explain(make_bank().load(), "one", "step")
