"""A finished session from its transcript file (JSONL, one message a line), for agents that had no hooks.

Each assistant `tool_use` block and the `tool_result` block that answers it become one tool call; a call without an
answer was interrupted. A message that the user typed ends the turn before it; `<command-name>/x</command-name>` in it
opens the skill x. Calls that hooks already recorded (same tool_use_id) are not taken twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow.errors import DataError
from astraflow.evolution.traces.capture import append, folder_name, loads
from astraflow.evolution.traces.payload import MAX_ID, adapt
from astraflow.evolution.traces.redaction import shortened
from astraflow.evolution.traces.store import TraceStore

_COMMAND = re.compile(r"<command-name>\s*/?([\w:.-]+)\s*</command-name>")
_BUILT_IN = frozenset(
    (
        "agents", "clear", "compact", "config", "context", "cost", "doctor", "exit", "export", "help", "hooks", "init",
        "login", "logout", "mcp", "memory", "model", "permissions", "plugin", "resume", "rewind", "status", "usage",
    )
)  # fmt: skip
"""Commands of the agent itself: a transcript shows them like skills."""
_ARGUMENTS = re.compile(r"<command-args>(.*?)</command-args>", re.DOTALL)


@dataclass
class _Call:
    """A tool_use whose result has not come yet."""

    payload: dict[str, Any]
    base: dict[str, Any] = field(default_factory=dict)


def import_transcript(store: TraceStore, path: Path, session_id: str | None = None) -> tuple[str, int]:
    """Record a transcript's session; returns its folder and the number of events added.

    DataError where the file has no message that can be read.
    """
    lines = list(_messages(path))
    if not lines:
        raise DataError(f"{path}: no message of a transcript in it")
    named = next((line["sessionId"] for line in lines if isinstance(line.get("sessionId"), str)), path.stem)
    session = shortened(session_id or named, MAX_ID)  # as the events name it
    folder = folder_name(session)
    earlier = store.events(folder) if folder in store.sessions() else []
    known = {event.tool_use_id for event in earlier if event.tool_use_id}
    if any(event.type == "session_end" for event in earlier):
        return folder, 0
    added = 0
    calls_before = sum(event.type == "tool_call" for event in earlier)
    for name, payload in _payloads(lines):
        if payload.get("tool_use_id") in known or (calls_before and name in ("Stop", "UserPromptExpansion")):
            continue  # hooks were there: their boundaries stand, only calls that they missed are added
        event = adapt({**payload, "session_id": session, "hook_event_name": name}, name)
        if event is not None:
            append(str(store.root), event)
            added += 1
    return folder, added


def _messages(path: Path) -> Iterator[dict[str, Any]]:
    """The lines with a message, read as hooks read: an output that ends in half an emoji is not a torn line."""
    for data in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            line = loads(data)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and isinstance(line.get("message"), dict):
            yield line


def _payloads(lines: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Hook event name and payload of everything in a transcript, in order of its answers."""
    waiting: dict[str, _Call] = {}
    worked = False
    for line in lines:
        base = {"timestamp": line.get("timestamp"), "cwd": line.get("cwd")}
        if line.get("isSidechain") and line.get("agentId"):
            base["agent_id"] = line["agentId"]
        content = line["message"].get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for block in (block for block in blocks if isinstance(block, dict)):
            if block.get("type") == "tool_use":
                waiting[str(block.get("id"))] = _Call(_use(block), base)
            elif block.get("type") == "tool_result":
                call = waiting.pop(str(block.get("tool_use_id")), None)
                if call:
                    worked = True
                    yield _answered(call, block, line)
            elif line.get("type") == "user" and block.get("type") == "text" and not base.get("agent_id"):
                if worked and not line.get("isMeta"):
                    yield "Stop", base
                    worked = False
                yield from _command(str(block.get("text") or ""), base)
    for call in waiting.values():
        yield "PostToolUseFailure", {**call.base, **call.payload, "error": "no result", "is_interrupt": True}
    last = lines[-1].get("timestamp")
    if worked or waiting:
        yield "Stop", {"timestamp": last}
    yield "SessionEnd", {"timestamp": last, "reason": "imported"}


def _use(block: dict[str, Any]) -> dict[str, Any]:
    return {"tool_name": block.get("name"), "tool_input": block.get("input"), "tool_use_id": block.get("id")}


def _answered(call: _Call, block: dict[str, Any], line: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    content = block.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    payload = {**call.base, **call.payload, "timestamp": line.get("timestamp")}
    if block.get("is_error") is True:
        return "PostToolUseFailure", {**payload, "error": content}
    structured = line.get("toolUseResult")
    return "PostToolUse", {**payload, "tool_response": structured if isinstance(structured, dict) else content}


def _command(text: str, base: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    match = _COMMAND.search(text)
    if match and match.group(1) not in _BUILT_IN:
        arguments = _ARGUMENTS.search(text)
        given = arguments.group(1).strip() if arguments else ""
        yield "UserPromptExpansion", {**base, "command_name": match.group(1), "command_args": given}
