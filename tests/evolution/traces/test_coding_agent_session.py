"""A coding agent's real payloads go through the hooks, the segmenters and the analyzer: each comes out right."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow.evolution.traces.analyzer import analyse
from astraflow.evolution.traces.capture import ROOT_VARIABLE
from astraflow.evolution.traces.findings import FindingKind
from astraflow.evolution.traces.segmenters import segment_session
from astraflow.evolution.traces.store import TraceStore
from astraflow.evolution.traces.trace import AgentTrace, Intent, Outcome

HOOKS = Path(__file__).parents[3] / "traj_opt" / "hooks"
SESSION = "5f1c9a52-9a64-4a53-b0e8-0f2f6f3b1c11"
BASE = {
    "session_id": SESSION,
    "transcript_path": f"/home/dev/.agent/projects/app/{SESSION}.jsonl",
    "cwd": "/home/dev/app",
    "permission_mode": "default",
}


def used(tool: str, given: dict[str, Any], response: Any, use_id: str, **more: Any) -> dict[str, Any]:
    call = {"hook_event_name": "PostToolUse", "tool_name": tool, "tool_input": given, "tool_response": response}
    return {**BASE, **call, "tool_use_id": use_id, "duration_ms": 40, **more}


def failed(tool: str, given: dict[str, Any], error: str, use_id: str, **more: Any) -> dict[str, Any]:
    call = {"hook_event_name": "PostToolUseFailure", "tool_name": tool, "tool_input": given, "error": error}
    return {**BASE, **call, "tool_use_id": use_id, "is_interrupt": False, "duration_ms": 90, **more}


PAYLOADS: list[dict[str, Any]] = [
    {**BASE, "hook_event_name": "SessionStart", "source": "startup", "model": "m"},
    # a turn of free work: five tools, then a failed test that is mended
    used("Glob", {"pattern": "**/*.py"}, {"filenames": ["/home/dev/app/sums.py"], "numFiles": 1}, "u01"),
    used("Grep", {"pattern": "error|failed", "path": "src"}, {"mode": "content", "content": "error: failed"}, "u02"),
    used("Read", {"file_path": "/home/dev/app/sums.py"}, {"type": "text", "file": {"content": "# Error"}}, "u03"),
    failed(
        "Edit",
        {"file_path": "/home/dev/app/sums.py", "old_string": "a", "new_string": "b"},
        "String to replace not found in file.\nString: a",
        "u04",
    ),
    used(
        "Edit", {"file_path": "/home/dev/app/sums.py", "old_string": "c", "new_string": "b"}, {"filePath": "x"}, "u05"
    ),
    failed("Bash", {"command": "pytest -q"}, "Exit code 1\n1 failed", "u06"),
    used("Write", {"file_path": "/home/dev/app/sums.py", "content": "x"}, {"type": "update"}, "u07"),
    used("Bash", {"command": "pytest -q"}, {"stdout": "1 passed", "stderr": "", "interrupted": False}, "u08"),
    {**BASE, "hook_event_name": "Stop", "stop_hook_active": False, "last_assistant_message": "done"},
    # a typed skill, with a sub-agent at work
    {
        **BASE,
        "hook_event_name": "UserPromptExpansion",
        "expansion_type": "slash_command",
        "command_name": "rllm-train",
        "command_args": "64 problems",
        "command_source": "project",
        "prompt": "/rllm-train 64 problems",
    },
    used("Bash", {"command": "python -m rllm_train.train"}, {"stdout": "Error rate 0.1", "stderr": ""}, "u09"),
    used("Read", {"file_path": "/data/log.txt"}, {"type": "text"}, "u10", agent_id="agent-7", agent_type="Explore"),
    {**BASE, "hook_event_name": "SubagentStop", "agent_id": "agent-7", "agent_type": "Explore"},
    used("Agent", {"description": "look", "prompt": "…"}, {"status": "completed", "content": []}, "u11"),
    {**BASE, "hook_event_name": "Stop", "stop_hook_active": False},
    # a skill that the agent opens by itself; the user interrupts it
    used("Skill", {"skill": "traj-segment"}, {"success": True, "commandName": "traj-segment"}, "u12"),
    failed("Bash", {"command": "traj segment"}, "The user stopped this", "u13", is_interrupt=True),
    {**BASE, "hook_event_name": "SessionEnd", "reason": "prompt_input_exit"},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TraceStore:
    root = tmp_path_factory.mktemp("agent") / "output"
    for payload in PAYLOADS:
        stops = payload["hook_event_name"] in ("Stop", "SubagentStop", "SessionEnd")
        command = [sys.executable, str(HOOKS / ("on_stop.py" if stops else "post_tool.py"))]
        command += ["--subagent"] if payload["hook_event_name"] == "SubagentStop" else []
        done = subprocess.run(
            command,
            input=json.dumps(payload).encode(),
            capture_output=True,
            check=False,
            env={**os.environ, ROOT_VARIABLE: str(root)},
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    store = TraceStore(root)
    segment_session(store, SESSION)
    return store


def traces(store: TraceStore) -> list[AgentTrace]:
    return sorted(store.traces(), key=lambda trace: trace.tool_calls[0].sequence)


def test_every_payload_is_one_event_in_its_layer(store: TraceStore) -> None:
    events = store.events(SESSION)
    assert [event.sequence for event in events] == list(range(len(PAYLOADS)))
    layers = [event.layer for event in events]
    assert layers == ["meta"] * 10 + ["rllm"] * 6 + ["traj"] * 3
    assert {event.tool_name for event in events if event.type == "tool_call"} == {
        "Glob", "Grep", "Read", "Edit", "Bash", "Write", "Agent", "Skill",
    }  # fmt: skip


def test_success_is_that_of_the_event(store: TraceStore) -> None:
    success = {event.tool_use_id: event.success for event in store.events(SESSION) if event.tool_use_id}
    assert {name for name, worked in success.items() if not worked} == {"u04", "u06", "u13"}
    assert [event.tool_use_id for event in store.events(SESSION) if event.interrupted] == ["u13"]


def test_each_piece_of_work_has_its_layer_intent_and_outcome(store: TraceStore) -> None:
    seen = [
        (trace.segmenter, trace.layer, trace.skill, trace.intent, trace.outcome, len(trace.tool_calls))
        for trace in traces(store)
    ]
    assert seen == [
        ("free", "meta", None, Intent.DEBUGGING, Outcome.PARTIAL, 8),
        ("skill", "rllm", "rllm-train", None, Outcome.SUCCESS, 3),
        ("skill", "traj", "traj-segment", None, Outcome.ABANDONED, 2),
    ]
    assert traces(store)[0].files_touched == ["sums.py"]


def test_the_report_names_what_went_wrong_with_a_session_that_exists(store: TraceStore) -> None:
    report = analyse(store, "meta", "free")
    assert (report.tool_calls, report.failed_calls, report.outcomes) == (8, 2, {"partial": 1})
    kinds = {(finding.kind, finding.tool_name, finding.recovery) for finding in report.findings}
    assert kinds == {
        (FindingKind.REPEATED_FAILURE, "Edit", None),
        (FindingKind.RECOVERED_FAILURE, "Bash", "Write"),
    }
    assert all(finding.session_ids == [SESSION] for finding in report.findings)
    abandoned = analyse(store, "traj", "skills").findings
    assert [(finding.kind, finding.skill) for finding in abandoned] == [(FindingKind.ABANDONED_SKILL, "traj-segment")]
    assert analyse(store, "rllm", "training").findings == []
