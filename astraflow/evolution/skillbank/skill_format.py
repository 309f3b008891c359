"""The Agent Skills format: what a SKILL.md must be for any agent to load it.

Source: the public specification of Agent Skills (agentskills.io/specification). Keys beyond it are for one agent only
and need `target: claude-code` in the base's front-matter; the compiler takes that line out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astraflow.evolution.skillbank.problem import Code, Problem

NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
MAX_BODY_LINES = 499
PORTABLE_KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
TARGET_KEY = "target"
TARGETS = ("agent-skills", "claude-code")
"""What a base may be written for: any agent (the default), or one that reads more keys."""


def check_skill(values: Mapping[str, Any], body: str, skill: str, target: str, file: Path) -> list[Problem]:
    """Everything in which a compiled skill breaks the format. `skill` is its directory's name."""

    def problem(message: str) -> Problem:
        return Problem(Code.SKILL_FORMAT, f"skill '{skill}': {message}", (skill,), file)

    messages = [*_about_name(values, skill), *_about_description(values), *_about_optional(values)]
    if target not in TARGETS:
        messages.append(f"unknown target '{target}'; known: {', '.join(TARGETS)}")
    elif target == TARGETS[0]:
        messages += [
            f"key '{key}' is not in the Agent Skills format; it needs 'target: claude-code'"
            for key in values
            if key not in PORTABLE_KEYS
        ]
    lines = len(body.strip("\n").split("\n"))
    if lines > MAX_BODY_LINES:
        messages.append(f"the body has {lines} lines; it must have fewer than {MAX_BODY_LINES + 1}")
    if not body.strip():
        messages.append("the body is empty")
    return [problem(message) for message in messages]


def _about_name(values: Mapping[str, Any], skill: str) -> Iterator[str]:
    name = values.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > MAX_NAME:
        yield f"name {name!r} must be at most {MAX_NAME} of a-z, 0-9 and single '-' between them"
    if name != skill:
        yield f"name {name!r} must be the skill's directory name '{skill}'"


def _about_description(values: Mapping[str, Any]) -> Iterator[str]:
    description = values.get("description")
    if not isinstance(description, str) or not description.strip():
        yield "a description is missing: what the skill does and when to use it"
    elif len(description) > MAX_DESCRIPTION:
        yield f"the description has {len(description)} characters; it may have {MAX_DESCRIPTION}"


def _about_optional(values: Mapping[str, Any]) -> Iterator[str]:
    for key in ("license", "compatibility", "allowed-tools"):
        if key in values and not isinstance(values[key], str):
            yield f"'{key}' must be text, not {values[key]!r}"
    compatibility = values.get("compatibility", "")
    if isinstance(compatibility, str) and len(compatibility) > MAX_COMPATIBILITY:
        yield f"'compatibility' has {len(compatibility)} characters; it may have {MAX_COMPATIBILITY}"
    metadata = values.get("metadata", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in metadata.items()
    ):
        yield f"'metadata' must map texts to texts, not {metadata!r} (quote numbers)"
