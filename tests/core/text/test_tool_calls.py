"""Tool calls in model-written text: what can be read, and what cannot is kept with a reason."""

from __future__ import annotations

from astraflow.core.text import parse_tool_calls


def test_calls_are_read_in_order() -> None:
    text = (
        'so <tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call> and '
        '<tool_call>{"name": "now"}</tool_call>'
    )
    first, second = parse_tool_calls(text)
    assert (first.name, first.arguments, first.error) == ("add", {"a": 1, "b": [2]}, None)
    assert (second.name, second.arguments) == ("now", {})


def test_text_without_calls_has_none() -> None:
    assert parse_tool_calls("just text, </tool_call>") == []


def test_what_cannot_be_read_says_why() -> None:
    broken, nameless, cut = parse_tool_calls(
        '<tool_call>{"name": </tool_call><tool_call>{"arguments": {}}</tool_call><tool_call>{"name": "add"'
    )
    assert "truncated" in (broken.error or "")
    assert "name" in (nameless.error or "")
    assert cut.error == "the call is not closed"
    assert cut.text == '{"name": "add"'
