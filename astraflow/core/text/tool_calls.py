"""Tool calls as models of the Qwen family write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that a model asked for. One that cannot be read is kept, with `error`: the workflow answers it."""

    name: str
    """Empty where the text cannot be read."""
    arguments: dict[str, Any]
    text: str
    """What stood between the tags."""
    error: str | None = None


class _Body(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = {}


def parse_tool_calls(text: str) -> list[ToolCall]:
    """Return the calls in `text`, in order; an unclosed last block counts as cut off, with an error."""
    return [_parse(match) for match in _BLOCK.finditer(text)]


def _parse(match: re.Match[str]) -> ToolCall:
    body = match.group(1).strip()
    if not match.group(0).endswith("</tool_call>"):
        return ToolCall(name="", arguments={}, text=body, error="the call is not closed")
    try:
        call = msgspec.json.decode(body, type=_Body)
    except msgspec.DecodeError as error:
        return ToolCall(name="", arguments={}, text=body, error=str(error))
    return ToolCall(name=call.name, arguments=call.arguments, text=body)
