"""The settings block that makes a coding agent call the hooks."""

from __future__ import annotations

from typing import Any

POST_TOOL = "traj_opt/hooks/post_tool.py"
ON_STOP = "traj_opt/hooks/on_stop.py"
_TIMEOUT = 5
"""Seconds that the agent waits; the hook gives up by itself within one."""

_HOOKS = {
    "PostToolUse": POST_TOOL,
    "PostToolUseFailure": POST_TOOL,
    "UserPromptExpansion": POST_TOOL,
    "SessionStart": POST_TOOL,
    "Stop": ON_STOP,
    "SubagentStop": f"{ON_STOP} --subagent",
    "SessionEnd": ON_STOP,
}
_WITH_MATCHER = frozenset({"PostToolUse", "PostToolUseFailure"})


def hook_settings(python: str, root: str) -> dict[str, Any]:
    """Settings with one command for each event, for the repository at `root`."""
    settings: dict[str, Any] = {}
    for event, script in _HOOKS.items():
        path, _, flag = script.partition(" ")
        command = f'"{python}" "{root}/{path}"{" " + flag if flag else ""}'
        entry: dict[str, Any] = {"hooks": [{"type": "command", "command": command, "timeout": _TIMEOUT}]}
        settings[event] = [{"matcher": "*", **entry} if event in _WITH_MATCHER else entry]
    return {"hooks": settings}
