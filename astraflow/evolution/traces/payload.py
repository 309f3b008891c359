"""What a coding agent sends to a hook becomes the body of an event. Standard library only.

Two shapes are understood: the one with `hook_event_name`, and the older one that has only tool_name, tool_input and
tool_response. Success is what the event says (its name, an interrupt, an error flag, an exit code), never what words
in an output seem to say.
"""

from __future__ import annotations

import os
import time

from astraflow.evolution.traces.redaction import kept, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA_VERSION = 1
LAYERS = ("rllm", "traj", "meta")

MAX_ID = 200
"""Characters kept of an id or a time."""

TYPES = {
    "PostToolUse": "tool_call",
    "PostToolUseFailure": "tool_call",
    "UserPromptExpansion": "skill_open",
    "SessionStart": "conversation_start",
    "Stop": "turn_end",
    "SubagentStop": "conversation_end",
    "SessionEnd": "session_end",
}
"""Hook event name → event type; every other name is ignored."""
STOPS = frozenset({"Stop", "SubagentStop", "SessionEnd"})

_EXIT_CODES = ("exit_code", "exitCode", "returncode", "return_code")
_FAILED_STATUS = frozenset({"error", "failed", "failure", "cancelled", "interrupted", "timeout"})
_SEARCHES = frozenset({"Glob", "Grep", "LS"})


def layer_of(skill: str | None) -> str:
    """The layer that a skill's work belongs to; work outside rllm-* and traj-* skills is `meta`."""
    prefix = (skill or "").rpartition(":")[2].split("-", 1)[0]
    return prefix if prefix in ("rllm", "traj") else "meta"


def opened_skill(kind: str, tool_name: str | None, tool_input: Any, success: bool | None) -> str | None:
    """The skill that an event opens: a typed `/skill`, or a Skill call that did not fail."""
    if not isinstance(tool_input, dict):
        return None
    if kind == "skill_open" or (kind == "tool_call" and tool_name == "Skill" and success is not False):
        name = tool_input.get("skill") or tool_input.get("command") or tool_input.get("name")
        return name.removeprefix("/").strip() or None if isinstance(name, str) else None
    return None


def adapt(payload: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the event of a payload, without sequence, layer and skill; None where nothing is recorded.

    `name` is the hook event name, which payloads in the older shape lack.
    """
    kind = TYPES.get(name)
    if kind is None or (kind == "tool_call" and not isinstance(payload.get("tool_name"), str)):
        return None
    session = _text(payload.get("session_id")) or "unknown"
    event: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "type": kind,
        "session_id": session,
        "conversation_id": _text(payload.get("agent_id")) or session,
        "timestamp": _text(payload.get("timestamp")) or now(),
        "tool_name": None,
        "tool_input": None,
        "tool_response": None,
        "success": None,
        "interrupted": False,
        "files_touched": [],
        "tool_use_id": _text(payload.get("tool_use_id")),
        "duration_ms": _duration(payload.get("duration_ms")),
    }
    if kind == "tool_call":
        event.update(_tool_call(payload, failed=name == "PostToolUseFailure"))
    elif kind == "skill_open":
        event["tool_input"] = kept({"skill": payload.get("command_name"), "args": payload.get("command_args")})
    elif kind == "session_end":
        event["tool_input"] = kept({"reason": payload.get("reason")})
    return event


def succeeded(payload: dict[str, Any], failed: bool) -> bool:
    """Whether a tool call worked, by what its event states."""
    if failed or payload.get("is_interrupt") is True or payload.get("is_error") is True:
        return False
    if isinstance(payload.get("success"), bool):
        return bool(payload["success"])
    response = _response(payload)
    if not isinstance(response, dict):
        return not (payload.get("hook_event_name") is None and payload.get("error"))
    if response.get("is_error") is True or response.get("interrupted") is True or response.get("success") is False:
        return False
    if any(type(response.get(key)) is int and response[key] != 0 for key in _EXIT_CODES):
        return False
    return not (isinstance(response.get("status"), str) and response["status"] in _FAILED_STATUS)


def now() -> str:
    """The time as ISO 8601 with microseconds, UTC."""
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


def _tool_call(payload: dict[str, Any], failed: bool) -> dict[str, Any]:
    response = _response(payload)
    if response is None and payload.get("error") is not None:
        response = {"error": payload["error"]}
    nested = response if isinstance(response, dict) else {}
    interrupted = payload.get("is_interrupt") is True or nested.get("interrupted") is True
    return {
        "tool_name": shortened(payload["tool_name"], 200),
        "tool_input": kept(payload.get("tool_input")),
        "tool_response": kept(response),
        "success": succeeded(payload, failed),
        "interrupted": interrupted,
        "files_touched": _files(payload),
    }


def _response(payload: dict[str, Any]) -> Any:
    for key in ("tool_response", "tool_output", "tool_result"):
        if payload.get(key) is not None:
            return payload[key]
    return None


def _files(payload: dict[str, Any]) -> list[str]:
    """Files that a call names, relative to its working directory where they lie in it."""
    given = payload.get("tool_input")
    if not isinstance(given, dict) or payload.get("tool_name") in _SEARCHES:
        return []
    named = [given.get(key) for key in ("file_path", "notebook_path", "path")]
    edits = given.get("files")
    named += edits if isinstance(edits, list) else []
    cwd = payload.get("cwd")
    found: list[str] = []
    for path in named[:64]:
        if not isinstance(path, str) or not path:
            continue
        if isinstance(cwd, str) and cwd and path.startswith(cwd.rstrip(os.sep) + os.sep):
            path = path[len(cwd.rstrip(os.sep)) + 1 :]
        path = shortened(path, 512)
        if path not in found:
            found.append(path)
    return found


def _text(value: Any) -> str | None:
    return shortened(value if isinstance(value, str) else str(value), MAX_ID) if value not in (None, "") else None


def _duration(value: Any) -> float | None:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if numeric and 0 <= value < 1e12 else None
