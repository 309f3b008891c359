"""The records: an Event is one line that a hook wrote, an AgentTrace is one piece of work made of events.

An AgentTrace is a coding agent's recorded work. It is no RL trajectory (`core/data/trajectory.py`), though files and
folders of traces bear that name for historical reasons.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Outcome(StrEnum):
    """How a trace ended."""

    SUCCESS = "success"
    """No call failed."""
    PARTIAL = "partial"
    """Some call failed, the last one worked."""
    FAILURE = "failure"
    """The last call failed."""
    ABANDONED = "abandoned"
    """Interrupted, or nothing was done, or a skill's work never came to an end."""


class Intent(StrEnum):
    """What free work was about."""

    EXPLORATION = "exploration"
    """Only reading and searching."""
    IMPLEMENTATION = "implementation"
    """Files were changed."""
    TESTING = "testing"
    """Tests or checks were run, nothing was changed."""
    DEBUGGING = "debugging"
    """A call failed, then something was changed or tried again."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of events.jsonl; `capture` writes it, unknown fields of later schemas are ignored."""

    schema_version: int
    type: str
    session_id: str
    conversation_id: str
    """The sub-agent's id, else the session's."""
    timestamp: str
    sequence: int
    """Position in the session over all its layers; the order of work, also where timestamps are equal."""
    layer: str
    tool_name: str | None = None
    tool_input: Any = None
    tool_response: Any = None
    success: bool | None = None
    files_touched: list[str] = []
    tool_use_id: str | None = None
    duration_ms: float | None = None
    skill: str | None = None
    interrupted: bool = False
    round: int | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as a trace keeps it."""

    sequence: int
    timestamp: str
    tool_name: str
    target: str
    """What it acted on: a file, a command, a query; the compact input where it has none of these."""
    success: bool
    error: str | None = None
    """What the tool said, where the call failed."""
    interrupted: bool = False
    files_touched: list[str] = []
    duration_ms: float | None = None
    tool_use_id: str | None = None


class AgentTrace(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work: the calls made under a skill, or free calls that belong together."""

    trace_id: str
    session_id: str
    conversation_id: str
    layer: str
    segmenter: str
    skill: str | None
    intent: Intent | None
    outcome: Outcome
    round: int | None
    started: str
    ended: str
    tool_calls: list[ToolCall]
    files_touched: list[str]


_TARGETS = ("file_path", "notebook_path", "command", "pattern", "query", "url", "path", "skill", "text", "description")
_TARGET_LENGTH = 300


def tool_call(event: Event) -> ToolCall:
    """The ToolCall of a tool_call event."""
    return ToolCall(
        sequence=event.sequence,
        timestamp=event.timestamp,
        tool_name=event.tool_name or "unknown",
        target=_target(event.tool_input),
        success=event.success is not False,
        error=error_text(event.tool_response) if event.success is False else None,
        interrupted=event.interrupted,
        files_touched=event.files_touched,
        duration_ms=event.duration_ms,
        tool_use_id=event.tool_use_id,
    )


def error_text(response: Any) -> str:
    """The text in which a failed call says why."""
    if isinstance(response, str):
        return response
    if isinstance(response, dict):
        for key in ("error", "stderr", "message", "content", "stdout", "output"):
            if value := response.get(key):
                return value if isinstance(value, str) else _compact(value)
    return "" if response is None else _compact(response)


def _target(tool_input: Any) -> str:
    if isinstance(tool_input, dict):
        for key in _TARGETS:
            if isinstance(tool_input.get(key), str):
                return str(tool_input[key])[:_TARGET_LENGTH]
    return ("" if tool_input is None else _compact(tool_input))[:_TARGET_LENGTH]


def _compact(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
