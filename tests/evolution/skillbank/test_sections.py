"""Anchors: what is a section, what is text, what is refused and on which line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.evolution.skillbank.problem import Code, SkillBankError
from astraflow.evolution.skillbank.sections import Document, Part, Piece, parse_document

FILE = Path("base.md")


def parse(body: str) -> Document:
    return parse_document(body, FILE, 5)


def test_sections_and_the_text_between_them_keep_their_order_and_lines() -> None:
    document = parse(
        "\n# T\n\n<!-- section:a -->\nA\n\nA2\n<!-- /section:a -->\nB\n<!-- section:c -->\n<!-- /section:c -->\n"
    )
    assert [(piece.name, piece.text) for piece in document.pieces] == [
        ("", "# T"),
        ("a", "A\n\nA2"),
        ("", "B"),
        ("c", ""),
    ]
    assert [piece.parts[0].line for piece in document.pieces[:3]] == [6, 9, 13]
    assert document.render() == "# T\n\nA\n\nA2\n\nB\n"


def test_anchors_may_stand_on_one_line_with_their_text() -> None:
    assert parse("<!-- section:a -->text<!-- /section:a -->").section("a").text == "text"


def test_anchors_in_code_are_text() -> None:
    body = "Use `<!-- section:x -->`.\n\n```md\n<!-- section:y -->\n```\n\n~~~\n<!-- /section:z -->\n"
    document = parse(body)
    assert document.section_names == ()
    assert document.render() == body


def test_indentation_of_the_first_line_stays() -> None:
    assert parse("<!-- section:a -->\n    code\n<!-- /section:a -->\n").render() == "    code\n"


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("x\n<!-- section:a -->\n<!-- section:b -->\n", 7, "section 'b' starts inside section 'a'"),
        ("x\n<!-- section:a -->\ny\n", 6, "section 'a' is never closed"),
        ("<!-- /section:a -->\n", 5, "end of section 'a', but no section is open"),
        ("<!-- section:a -->\n\n<!-- /section:b -->\n", 7, "end of section 'b', but section 'a' is open"),
        ("\n\n<!-- section: a b -->\n", 7, "is no anchor"),
        ("<!-- section:a\n", 5, "is no anchor"),
        ("<!-- Section:a -->\n", 5, "is no anchor"),
        ("<!-- section:ä -->\n", 5, "is no anchor"),
        ("<!-- section -->\n", 5, "is no anchor"),
    ],
)
def test_a_malformed_anchor_is_refused_with_its_line(body: str, line: int, message: str) -> None:
    with pytest.raises(SkillBankError, match=message) as refused:
        parse(body)
    (problem,) = refused.value.problems
    assert (problem.code, problem.line, problem.file) == (Code.MALFORMED_ANCHOR, line, FILE)


def test_a_name_is_used_once() -> None:
    twice = "<!-- section:a -->\n<!-- /section:a -->\n"
    with pytest.raises(SkillBankError, match=r"base\.md:7: section 'a' is there twice"):
        parse(twice + twice)


TEXTS = st.lists(st.from_regex(r"[a-z#*-][a-z `#.]{0,20}", fullmatch=True), min_size=1, max_size=3).map("\n\n".join)
NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), min_size=1, max_size=5, unique=True)


@given(NAMES, st.data())
def test_what_is_rendered_with_anchors_reads_back(names: list[str], data: st.DataObject) -> None:
    pieces = []
    for name in names:
        text = data.draw(TEXTS).replace("`", "").rstrip()
        pieces.append(Piece(name, (Part(text.strip("\n"), "base", FILE, 1),)))
    document = Document(tuple(pieces))
    again = parse(document.render(anchors=True))
    assert again.section_names == tuple(names)
    assert again.render() == document.render()
    assert again.render(anchors=True) == document.render(anchors=True)
