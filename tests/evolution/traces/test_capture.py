"""A hook never fails, never prints, writes only under its root, and loses no line to another writer."""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.evolution.traces.bench import bench_hooks
from astraflow.evolution.traces.capture import ROOT_VARIABLE, ROUND_VARIABLE, folder_name, record
from astraflow.evolution.traces.payload import STOPS, TYPES
from astraflow.evolution.traces.store import TraceStore
from tests.evolution.traces.conftest import REPOSITORY, Send, lines

POST_TOOL = REPOSITORY / "traj_opt" / "hooks" / "post_tool.py"
ON_STOP = REPOSITORY / "traj_opt" / "hooks" / "on_stop.py"
TAKES = frozenset(TYPES) - STOPS
CALL: dict[str, Any] = {"session_id": "s1", "hook_event_name": "PostToolUse", "tool_name": "Read", "tool_input": {}}


def hook(
    script: Path, data: bytes, root: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, str(script), *arguments]
    env = {**os.environ, ROOT_VARIABLE: str(root), **environment}
    return subprocess.run(command, input=data, capture_output=True, check=False, env=env, timeout=30)


def files_under(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
NASTY_IDS = st.sampled_from(
    ["../../../../tmp/x", "/etc/passwd", "..", ".", "", "a/b", "a\0b", "\ud800", "x" * 9000, "état"]
)
PAYLOADS = st.fixed_dictionaries(
    {},
    optional={
        "hook_event_name": st.sampled_from(sorted(TYPES)) | JSON_VALUES,
        "session_id": NASTY_IDS | JSON_VALUES,
        "agent_id": NASTY_IDS | JSON_VALUES,
        "tool_name": st.sampled_from(["Read", "Skill", "Bash"]) | JSON_VALUES,
        "tool_input": st.fixed_dictionaries({"skill": NASTY_IDS, "file_path": NASTY_IDS}) | JSON_VALUES,
        "tool_response": JSON_VALUES,
        "command_name": NASTY_IDS | JSON_VALUES,
        "cwd": JSON_VALUES,
        "timestamp": JSON_VALUES,
        "duration_ms": JSON_VALUES,
        "is_interrupt": JSON_VALUES,
        "error": JSON_VALUES,
    },
)


@settings(max_examples=300)
@given(st.binary(max_size=200) | PAYLOADS.map(lambda payload: json.dumps(payload).encode()))
def test_any_payload_is_recorded_under_the_root_or_not_at_all(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "a" / "output"
        try:
            event = record(data, str(root), TAKES, "PostToolUse")
        except (OSError, ValueError, RecursionError):
            event = None  # `run` ends these; everything else would be a bug of ours
        everything = files_under(Path(folder))
        assert all(root in path.parents for path in everything)
        recorded = [path for path in everything if path.name == "events.jsonl"]
        assert len(recorded) == (event is not None)
        for path in recorded:
            assert path.parent.parent.parent.parent == root
            assert lines(path)[0]["sequence"] == 0
            assert lines(path)[0]["layer"] == path.parent.parent.parent.name
            assert len(TraceStore(root).events(path.parent.name)) == 1  # strict readers take it too


@given(st.text(max_size=80))
def test_a_session_id_is_never_a_path(session_id: str) -> None:
    name = folder_name(session_id)
    assert name.replace("-", "").replace("_", "").isalnum()
    assert name.isascii()
    assert len(name) <= 64


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00\xff\xfe", b"not json", b"[1,2]", b"null", b"{" * 50_000, b"[" * 200_000, b'{"tool_name": "Read"'],
    ids=["empty", "bytes", "words", "list", "null", "braces", "brackets", "torn"],
)
@pytest.mark.parametrize("script", [POST_TOOL, ON_STOP], ids=["post_tool", "on_stop"])
def test_garbage_is_ignored_in_silence(data: bytes, script: Path, tmp_path: Path) -> None:
    done = hook(script, data, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert files_under(tmp_path) == set()


@pytest.mark.parametrize(
    "response",
    [
        {"content": "x " * 2_500_000},
        [["token tok-=: sk-" * 80] * 64] * 64,
        {f"k{n}": "://a:" * 16_000 for n in range(64)},
    ],
    ids=["text", "lists", "keys"],
)
def test_five_megabytes_are_cut(response: Any, tmp_path: Path) -> None:
    done = hook(POST_TOOL, json.dumps({**CALL, "tool_response": response}).encode(), tmp_path)
    assert (done.returncode, done.stdout) == (0, b"")
    path = tmp_path / "meta" / "raw" / "s1" / "events.jsonl"
    assert path.stat().st_size < 64 * 1024
    assert "sha256" in json.dumps(lines(path)[0]["tool_response"])


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    done = hook(POST_TOOL, json.dumps(CALL).encode(), blocked)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_standard_input_that_nobody_closes_ends_within_the_deadline(tmp_path: Path) -> None:
    command = [sys.executable, str(POST_TOOL)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, ROOT_VARIABLE: str(tmp_path)})
    assert process.wait(timeout=30) == 0
    assert process.stdin is not None
    process.stdin.close()


def test_closed_standard_streams_are_no_failure(tmp_path: Path) -> None:
    for streams in ("<&- >&- 2>&-", ">&- 2>&-", "</dev/null >&-"):
        done = subprocess.run(
            f'"{sys.executable}" "{POST_TOOL}" {streams}',
            shell=True,
            check=False,
            input=json.dumps(CALL).encode(),
            env={**os.environ, ROOT_VARIABLE: str(tmp_path)},
        )
        assert done.returncode == 0
    assert len(lines(tmp_path / "meta" / "raw" / "s1" / "events.jsonl")) == 1


def test_hooks_load_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import astraflow.evolution.traces.capture\n"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout.replace("'", '"')))
    assert loaded - {"astraflow"} <= set(sys.stdlib_module_names)


def test_each_hook_takes_its_own_events(tmp_path: Path) -> None:
    stop = {"session_id": "s1", "hook_event_name": "Stop"}
    hook(POST_TOOL, json.dumps(stop).encode(), tmp_path)
    hook(ON_STOP, json.dumps(CALL).encode(), tmp_path)
    assert files_under(tmp_path) == set()
    hook(ON_STOP, json.dumps(stop).encode(), tmp_path)
    hook(ON_STOP, json.dumps({"session_id": "s1"}).encode(), tmp_path)
    hook(ON_STOP, json.dumps({**stop, "agent_id": "a1"}).encode(), tmp_path, "--subagent")
    types = [event["type"] for event in lines(tmp_path / "meta" / "raw" / "s1" / "events.jsonl")]
    assert types == ["turn_end", "turn_end", "conversation_end"]


def test_every_documented_field_is_there(tmp_path: Path) -> None:
    payload = {**CALL, "cwd": "/r", "tool_input": {"file_path": "/r/a.py"}, "tool_use_id": "u1", "duration_ms": 12}
    hook(POST_TOOL, json.dumps(payload).encode(), tmp_path, **{ROUND_VARIABLE: "4"})
    event = lines(tmp_path / "meta" / "raw" / "s1" / "events.jsonl")[0]
    timestamp = event.pop("timestamp")
    assert timestamp.endswith("Z")
    assert event == {
        "schema_version": 1,
        "type": "tool_call",
        "session_id": "s1",
        "conversation_id": "s1",
        "sequence": 0,
        "layer": "meta",
        "tool_name": "Read",
        "tool_input": {"file_path": "/r/a.py"},
        "tool_response": None,
        "success": True,
        "files_touched": ["a.py"],
        "tool_use_id": "u1",
        "duration_ms": 12.0,
        "interrupted": False,
        "skill": None,
        "round": 4,
    }


def test_the_layer_follows_the_open_skill_also_in_sub_agents(send: Send) -> None:
    read: dict[str, Any] = {"tool_name": "Read", "tool_input": {}}
    assert send("PostToolUse", **read)["layer"] == "meta"
    assert send("UserPromptExpansion", command_name="rllm-train")["layer"] == "rllm"
    assert send("PostToolUse", **read)["layer"] == "rllm"
    assert send("PostToolUse", agent_id="a1", **read)["layer"] == "rllm"
    assert send("PostToolUse", tool_name="Skill", tool_input={"skill": "traj-loop"})["layer"] == "traj"
    assert send("PostToolUse", agent_id="a2", tool_name="Skill", tool_input={"skill": "rllm-run"})["layer"] == "rllm"
    assert send("SubagentStop", agent_id="a2")["layer"] == "rllm"
    assert send("Stop")["layer"] == "traj"
    assert send("PostToolUse", **read)["layer"] == "meta"


def test_the_round_is_the_highest_begun_by_number(store: TraceStore, send: Send) -> None:
    for number in (2, 9, 10):
        (store.rounds / f"round_{number}").mkdir(parents=True)
    assert send("PostToolUse", tool_name="Read")["round"] == 10


def test_a_torn_last_line_is_skipped_and_the_next_line_is_whole(store: TraceStore, send: Send) -> None:
    send("PostToolUse", tool_name="Read")
    path = store.events_path("meta", "s1")
    with path.open("ab") as file:
        file.write(b'{"schema_version": 1, "type": "tool_c')
    send("PostToolUse", tool_name="Edit")
    assert [event.tool_name for event in store.events("s1")] == ["Read", "Edit"]


@pytest.mark.parametrize("damage", [b"", b'{"sequence": ', b"[]", b'{"sequence": "x", "skills": {}}'])
def test_a_lost_state_is_recovered_from_the_events(damage: bytes, store: TraceStore, send: Send) -> None:
    send("UserPromptExpansion", command_name="rllm-train")
    send("PostToolUse", tool_name="Read")
    (store.root / "state" / "s1.json").write_bytes(damage)
    event = send("PostToolUse", tool_name="Edit")
    assert (event["sequence"], event["layer"]) == (2, "rllm")


def test_a_state_that_becomes_shorter_is_read_without_its_old_end(send: Send) -> None:
    send("UserPromptExpansion", command_name="rllm-" + "long" * 20)
    send("Stop")
    event = send("PostToolUse", tool_name="Read")
    assert (event["sequence"], event["layer"], event["skill"]) == (2, "meta", None)


def test_eight_writers_lose_nothing() -> None:
    times = bench_hooks(POST_TOOL, writers=8, calls_each=4)
    assert (times.calls, times.valid_lines, times.distinct_sequences) == (32, 32, 32)


def test_many_appends_at_once_number_every_event_once(store: TraceStore, send: Send) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: send("PostToolUse", tool_name="Read"), range(400)))
    assert [event.sequence for event in store.events("s1")] == list(range(400))


@pytest.mark.parametrize("broken", [rb"\ud83d", "\N{ROCKET}".encode()[:2], b"\xff"])
def test_an_output_that_was_cut_in_a_character_is_recorded(tmp_path: Path, broken: bytes) -> None:
    data = json.dumps({**CALL, "tool_response": {"stdout": "all fine "}}).encode().replace(b"fine ", b"fine " + broken)
    done = hook(POST_TOOL, data, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    [event] = TraceStore(tmp_path).events("s1")
    assert event.tool_response["stdout"].startswith("all fine ")
