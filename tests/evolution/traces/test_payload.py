"""Payloads become events; success is what the event states."""

from typing import Any

import pytest

from astraflow.evolution.traces.payload import adapt, layer_of, opened_skill, succeeded

CALL = {"session_id": "s", "tool_name": "Bash", "tool_input": {"command": "x"}}


@pytest.mark.parametrize(
    ("response", "success"),
    [
        ({"stdout": "Error: failed, exit code 1, Traceback", "stderr": "warning: failure"}, True),
        ("error: this file is about failures", True),
        ({"exit_code": 0}, True),
        ({"exit_code": 2}, False),
        ({"returncode": -9}, False),
        ({"exitCode": True}, True),
        ({"interrupted": True}, False),
        ({"is_error": True}, False),
        ({"success": False}, False),
        ({"status": "completed"}, True),
        ({"status": "error"}, False),
        (None, True),
    ],
)
def test_success_comes_from_flags_and_exit_codes_not_from_words(response: Any, success: bool) -> None:
    event = adapt({**CALL, "hook_event_name": "PostToolUse", "tool_response": response}, "PostToolUse")
    assert event is not None
    assert event["success"] is success


def test_a_failure_event_is_a_failure_whatever_it_carries() -> None:
    event = adapt({**CALL, "error": "Exit code 1", "tool_response": {"exit_code": 0}}, "PostToolUseFailure")
    assert event is not None
    assert (event["success"], event["interrupted"]) == (False, False)


def test_an_interrupt_is_a_failure_and_is_marked() -> None:
    event = adapt({**CALL, "error": "stopped", "is_interrupt": True}, "PostToolUseFailure")
    assert event is not None
    assert (event["success"], event["interrupted"], event["tool_response"]) == (False, True, {"error": "stopped"})


def test_the_older_shape_has_no_event_name() -> None:
    assert succeeded({"tool_name": "Bash", "tool_output": "fine"}, failed=False)
    assert not succeeded({"tool_name": "Bash", "error": "boom"}, failed=False)
    assert not succeeded({"tool_name": "Bash", "success": False}, failed=False)
    event = adapt({"tool_name": "Bash", "tool_output": "fine"}, "PostToolUse")
    assert event is not None
    assert (event["session_id"], event["tool_response"]) == ("unknown", "fine")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PostToolUse", "tool_call"),
        ("PostToolUseFailure", "tool_call"),
        ("UserPromptExpansion", "skill_open"),
        ("SessionStart", "conversation_start"),
        ("Stop", "turn_end"),
        ("SubagentStop", "conversation_end"),
        ("SessionEnd", "session_end"),
    ],
)
def test_each_event_has_its_type(name: str, kind: str) -> None:
    event = adapt({**CALL, "agent_id": "a7"}, name)
    assert event is not None
    assert (event["type"], event["session_id"], event["conversation_id"]) == (kind, "s", "a7")


@pytest.mark.parametrize("name", ["PreToolUse", "Notification", "", "tool_call"])
def test_other_events_are_not_recorded(name: str) -> None:
    assert adapt(CALL, name) is None


def test_a_tool_call_without_a_tool_is_not_recorded() -> None:
    assert adapt({"session_id": "s", "tool_name": 7}, "PostToolUse") is None


def test_files_are_named_relative_to_the_working_directory() -> None:
    given = {**CALL, "tool_name": "Edit", "cwd": "/repo", "tool_input": {"file_path": "/repo/a/b.py"}}
    assert adapt(given, "PostToolUse")["files_touched"] == ["a/b.py"]
    given["tool_input"] = {"file_path": "/repository/b.py"}
    assert adapt(given, "PostToolUse")["files_touched"] == ["/repository/b.py"]
    searched = {**CALL, "tool_name": "Grep", "tool_input": {"path": "src", "pattern": "x"}}
    assert adapt(searched, "PostToolUse")["files_touched"] == []


@pytest.mark.parametrize(
    ("skill", "layer"),
    [("rllm-train", "rllm"), ("traj-loop", "traj"), ("plugin:rllm-run", "rllm"), ("review", "meta"), (None, "meta")],
)
def test_the_layer_is_that_of_the_skill(skill: str | None, layer: str) -> None:
    assert layer_of(skill) == layer


def test_only_what_opens_a_skill_opens_one() -> None:
    assert opened_skill("skill_open", None, {"skill": "/rllm-run"}, None) == "rllm-run"
    assert opened_skill("tool_call", "Skill", {"skill": "traj-loop"}, True) == "traj-loop"
    assert opened_skill("tool_call", "Skill", {"skill": "traj-loop"}, False) is None
    assert opened_skill("tool_call", "Bash", {"command": "rllm-run"}, True) is None
    assert opened_skill("skill_open", None, {"skill": None}, None) is None
    assert opened_skill("skill_open", None, "rllm-run", None) is None
