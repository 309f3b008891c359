"""The Agent Skills format."""

from pathlib import Path
from typing import Any

import pytest

from astraflow.evolution.skillbank.skill_format import check_skill

FILE = Path("base.md")
GOOD = {"name": "a-skill", "description": "What it does and when."}


def messages(changes: dict[str, Any] | None = None, body: str = "Text\n", target: str = "agent-skills") -> list[str]:
    return [problem.message for problem in check_skill({**GOOD, **(changes or {})}, body, "a-skill", target, FILE)]


def test_a_skill_with_every_portable_key_is_valid() -> None:
    optional = {"license": "MIT", "compatibility": "x", "metadata": {"v": "1"}, "allowed-tools": "Read Bash"}
    assert messages(optional, "line\n" * 499) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "A-skill"}, "must be at most 64 of a-z, 0-9"),
        ({"name": "a--skill"}, "must be at most 64"),
        ({"name": "-a"}, "must be at most 64"),
        ({"name": "a" * 65}, "must be at most 64"),
        ({"name": None}, "must be at most 64"),
        ({"name": "other"}, "must be the skill's directory name 'a-skill'"),
        ({"description": " "}, "a description is missing"),
        ({"description": "x" * 1025}, "has 1025 characters; it may have 1024"),
        ({"compatibility": "x" * 501}, "has 501 characters; it may have 500"),
        ({"metadata": {"version": 1.0}}, "'metadata' must map texts to texts"),
        ({"allowed-tools": ["Read"]}, "'allowed-tools' must be text"),
        ({"model": "x"}, "key 'model' is not in the Agent Skills format; it needs 'target: claude-code'"),
    ],
)
def test_what_breaks_the_format_is_said(changes: dict[str, Any], message: str) -> None:
    assert message in messages(changes)[0]


def test_limits_are_reached_exactly() -> None:
    name = "a" * 64
    values = {"name": name, "description": "x" * 1024}
    assert check_skill(values, "line\n" * 499, name, "agent-skills", FILE) == []
    assert messages(body="line\n" * 500) == ["skill 'a-skill': the body has 500 lines; it must have fewer than 500"]


def test_more_keys_with_the_target_and_no_other_target() -> None:
    assert messages({"model": "x"}, target="claude-code") == []
    assert "unknown target 'claude'" in messages(target="claude")[0]


def test_an_empty_body_is_no_skill() -> None:
    assert messages(body="\n\n") == ["skill 'a-skill': the body is empty"]
