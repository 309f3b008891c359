"""Traces are replaced, the index is what the files say, reports lie beside their JSON."""

import pytest

from astraflow.errors import DataError
from astraflow.evolution.traces.analyzer import analyse
from astraflow.evolution.traces.segmenters import segment_session
from astraflow.evolution.traces.store import TraceStore
from tests.evolution.traces.conftest import Send


def work(send: Send) -> None:
    send("UserPromptExpansion", command_name="rllm-run")
    send("PostToolUse", tool_name="Read", tool_input={"file_path": "a"})
    send("Stop")
    send("PostToolUse", tool_name="Read", tool_input={"file_path": "b"})


def test_segmenting_again_replaces(store: TraceStore, send: Send) -> None:
    work(send)
    first = segment_session(store, "s1")
    assert segment_session(store, "s1") == first
    assert len(store.traces()) == 2
    segment_session(store, "s1", ["free"])
    assert [trace.segmenter for trace in store.traces()] == ["free", "free"]
    assert not store.traces_path("rllm", "s1").exists()


def test_the_index_can_be_rebuilt(store: TraceStore, send: Send) -> None:
    work(send)
    segment_session(store, "s1")
    built = store.rebuild_index()
    assert [(line.session_id, line.layers, line.events, line.tool_calls, line.traces) for line in built] == [
        ("s1", ["rllm", "meta"], 4, 2, 2)
    ]
    store.index_path.unlink()
    assert store.rebuild_index() == built == store.index()


def test_a_session_is_found_by_its_id_or_folder(store: TraceStore, send: Send) -> None:
    send("PostToolUse", session_id="../odd id", tool_name="Read")
    folder = store.sessions()[0]
    assert store.check_session("../odd id") == store.check_session(folder) == folder
    with pytest.raises(DataError, match="no session 'other'"):
        store.check_session("other")


def test_a_report_lies_beside_its_json(store: TraceStore, send: Send) -> None:
    work(send)
    segment_session(store, "s1")
    report = analyse(store, "rllm", "first")
    path = store.write_report("rllm", "first", "# first\n", report)
    assert path.parent == store.root / "rllm" / "reports"
    assert path.read_text("utf-8") == "# first\n"
    assert path.with_suffix(".json").exists()
