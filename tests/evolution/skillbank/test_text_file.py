"""Strict YAML, front-matter and its edits, whole writes."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.evolution.skillbank.problem import SkillBankError
from astraflow.evolution.skillbank.text_file import (
    Fields,
    parse_mapping,
    read_text,
    split_front_matter,
    with_fields,
    write_atomically,
)

FILE = Path("patch.md")


def test_front_matter_is_split_and_the_body_knows_its_line() -> None:
    front = split_front_matter("---\nid: a\nlist: [1]\n---\n\nText\n", FILE)
    assert front.values == {"id": "a", "list": [1]}
    assert front.header == "id: a\nlist: [1]\n"
    assert front.body == "\nText\n"
    assert front.body_line == 5


def test_a_text_without_front_matter_is_all_body() -> None:
    assert split_front_matter("Text\n---\n", FILE).body == "Text\n---\n"


def test_front_matter_that_is_not_closed_is_refused_with_its_line() -> None:
    with pytest.raises(SkillBankError, match=r"patch\.md:1: front-matter is not closed"):
        split_front_matter("---\nid: a\n", FILE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", r"patch\.md:3: .*'a' is given twice"),
        ("a: [1\n", r"patch\.md:\d+: not valid YAML"),
        ("- a\n", "must be a mapping"),
        ("? [a]\n: b\n", "not valid YAML"),
        ("a: 2026-13-01\n", "not valid YAML: month must be in"),
        (f"a: {'[' * 5000}\n", "not valid YAML"),
        ("1: a\n", "must be a mapping with text keys"),
    ],
)
def test_yaml_that_pyyaml_would_take_silently_is_refused(text: str, message: str) -> None:
    with pytest.raises(SkillBankError, match=message):
        parse_mapping(text, FILE)


def test_yaml_makes_no_objects() -> None:
    with pytest.raises(SkillBankError, match="not valid YAML"):
        parse_mapping("a: !!python/object/apply:os.getcwd []\n", FILE)


def test_with_fields_leaves_every_other_line_as_it_was() -> None:
    text = "---\nid: 'a'   # why\nstatus: proposed\nscores: {x: 1}\n---\n\nBody: status: proposed\n"
    changed = with_fields(text, FILE, {"status": "accepted", "reason": "it helps", "scores": None})
    assert changed == "---\nid: 'a'   # why\nstatus: accepted\nreason: it helps\n---\n\nBody: status: proposed\n"


def test_with_fields_replaces_a_value_of_several_lines_whole() -> None:
    changed = with_fields("---\nlist:\n  - a\n  - b\nid: x\n---\nB\n", FILE, {"list": ["c"]})
    assert split_front_matter(changed, FILE).values == {"list": ["c"], "id": "x"}


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text() | st.lists(st.text()), max_size=4))
def test_with_fields_reads_back_as_what_was_set(fields: dict[str, object]) -> None:
    changed = with_fields("---\nid: a\n---\n\nB\n", FILE, fields)
    front = split_front_matter(changed, FILE)
    assert front.values == {"id": "a", **fields}
    assert front.body == "\nB\n"


def test_fields_name_the_key_that_is_wrong() -> None:
    fields = Fields({"id": 1, "list": ["a", 2], "map": {"x": {"y": 1}}}, FILE)
    for read, message in (
        (lambda: fields.text("id"), "'id' must be text, not 1"),
        (lambda: fields.texts("list"), "'list' must be a list of texts"),
        (lambda: fields.mapping("id"), "'id' must be a mapping"),
        (lambda: fields.only("idd", "list", "map"), r"unknown key 'id', did you mean 'idd'\?"),
        (lambda: fields.mappings("map")["x"].text("y"), r"'map\.x\.y' must be text"),
    ):
        with pytest.raises(SkillBankError, match=message):
            read()


def test_line_ends_and_byte_order_marks_of_other_systems_are_read_over(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf---\r\nid: a\r\n---\r\nText\r\n")
    assert read_text(tmp_path / "a.md") == "---\nid: a\n---\nText\n"


def test_a_missing_file_and_one_that_is_not_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary.md").write_bytes(b"\xff\xfe")
    with pytest.raises(SkillBankError, match=r"binary\.md: not UTF-8"):
        read_text(tmp_path / "binary.md")
    with pytest.raises(SkillBankError, match=r"none\.md: no such file"):
        read_text(tmp_path / "none.md")
    with pytest.raises(SkillBankError, match="no such file"):
        read_text(tmp_path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    write_atomically(file, "old\n")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "new \ud800\n")
    assert file.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["a.md"]


def test_a_write_keeps_the_files_mode(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    write_atomically(file, "one\n")
    assert file.stat().st_mode & 0o777 == 0o644
    file.chmod(0o600)
    write_atomically(file, "two\n")
    assert file.stat().st_mode & 0o777 == 0o600


def test_keys_on_one_line_survive_an_edit() -> None:
    changed = with_fields("---\n{id: a, status: b}\n---\nB\n", FILE, {"status": "c"})
    assert split_front_matter(changed, FILE).values == {"id": "a", "status": "c"}


def test_merge_keys_are_yaml() -> None:
    assert parse_mapping("a: &x {p: 1}\nb: {<<: *x, q: 2}\n", FILE)["b"] == {"p": 1, "q": 2}
