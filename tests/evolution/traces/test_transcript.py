"""A finished session comes in from its transcript as if hooks had been there."""

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.errors import DataError
from astraflow.evolution.traces.segmenters import segment_session
from astraflow.evolution.traces.store import TraceStore
from astraflow.evolution.traces.trace import Outcome
from astraflow.evolution.traces.transcript import import_transcript
from tests.evolution.traces.conftest import Send

SESSION = "0f8e-session"


def line(role: str, content: Any, second: int, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content}
    stamp = f"2026-01-01T00:00:{second:02d}.000Z"
    return {"type": role, "sessionId": SESSION, "cwd": "/r", "timestamp": stamp, "message": message, **more}


def use(name: str, use_id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": use_id, "name": name, "input": given}


def result(use_id: str, text: str, is_error: bool = False) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"type": "tool_result", "tool_use_id": use_id, "content": content, "is_error": is_error}


TRANSCRIPT = [
    {"type": "summary", "summary": "no message"},
    line("user", "<command-name>/clear</command-name>", 0),
    line("user", "please fix the sums", 0),
    line("assistant", [{"type": "text", "text": "ok"}, use("Read", "u1", file_path="/r/a.py")], 1),
    line("user", [result("u1", "error: not a failure")], 2, toolUseResult={"type": "text"}),
    line("assistant", [use("Bash", "u2", command="pytest"), use("Edit", "u3", file_path="/r/a.py")], 3),
    line("user", [result("u2", "Exit code 1", is_error=True)], 4),
    line("user", [result("u3", "done")], 5),
    line("user", "<command-name>/rllm-run</command-name>\n<command-args>fast</command-args>", 6),
    line("assistant", [use("Bash", "u4", command="run")], 7),
]


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in TRANSCRIPT) + '\n{"torn": ', "utf-8")
    return path


def test_a_transcript_becomes_events(store: TraceStore, transcript: Path) -> None:
    assert import_transcript(store, transcript) == (SESSION, 8)
    seen = [(event.type, event.tool_use_id, event.success, event.layer) for event in store.events(SESSION)]
    assert seen == [
        ("tool_call", "u1", True, "meta"),
        ("tool_call", "u2", False, "meta"),
        ("tool_call", "u3", True, "meta"),
        ("turn_end", None, None, "meta"),
        ("skill_open", None, None, "rllm"),
        ("tool_call", "u4", False, "rllm"),
        ("turn_end", None, None, "rllm"),
        ("session_end", None, None, "meta"),
    ]
    outcomes = {trace.skill: trace.outcome for trace in segment_session(store, SESSION)}
    assert outcomes == {None: Outcome.PARTIAL, "rllm-run": Outcome.ABANDONED}  # u4 never had a result


def test_importing_again_adds_nothing(store: TraceStore, transcript: Path) -> None:
    import_transcript(store, transcript)
    assert import_transcript(store, transcript) == (SESSION, 0)


def test_calls_that_hooks_recorded_are_not_taken_twice(store: TraceStore, transcript: Path, send: Send) -> None:
    send("PostToolUse", SESSION, tool_name="Read", tool_use_id="u1")
    import_transcript(store, transcript)
    uses = [event.tool_use_id for event in store.events(SESSION) if event.type == "tool_call"]
    assert uses == ["u1", "u2", "u3", "u4"]


def test_a_file_that_is_no_transcript_is_refused(store: TraceStore, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("hello\n{}\n", "utf-8")
    with pytest.raises(DataError, match="no message"):
        import_transcript(store, path)


@pytest.mark.parametrize("broken", [rb"\ud83d", rb"\ude80", rb"\ude80\ud83d", "\N{ROCKET}".encode()[:2], b"\xff"])
@pytest.mark.parametrize("place", ["done", "pytest", "/r/a.py", "Edit", SESSION])
def test_a_text_that_was_cut_in_a_character_costs_no_event(
    store: TraceStore, transcript: Path, broken: bytes, place: str
) -> None:
    """Half an emoji, escaped or not, wherever an agent may have cut its output."""
    transcript.write_bytes(transcript.read_bytes().replace(place.encode(), place.encode() + broken))
    folder, added = import_transcript(store, transcript)
    events = store.events(folder)
    assert len(events) == added == 8
    assert [event.success for event in events if event.type == "tool_call"] == [True, False, True, False]
    assert segment_session(store, folder)
