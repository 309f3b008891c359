import json
from pathlib import Path

from astraflow.core.observability.spans import KEEP_S, SpanLog


def test_spans_of_two_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    first, second = SpanLog(path, "dataflow"), SpanLog(path, "raas-0", block=1)
    with first.span("serve", step=3):
        pass
    second.add("pull", start=5.0, seconds=0.25, version=2)
    first.close()
    second.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {"name": "pull", "process": "raas-0", "start": 5.0, "seconds": 0.25, "version": 2}
    assert lines[1]["name"] == "serve"
    assert lines[1]["step"] == 3
    assert lines[1]["seconds"] >= 0


def test_lines_are_written_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    spans = SpanLog(path, "x", block=2)
    spans.add("a", 0.0, 1.0)
    assert path.read_text() == ""
    spans.add("b", 0.0, 1.0)
    assert len(path.read_text().splitlines()) == 2
    spans.close()


def test_a_slow_process_does_not_keep_a_block_for_long(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "spans.jsonl"
    spans = SpanLog(path, "x", clock=lambda: now[0])
    spans.add("a", 0.0, 1.0)
    now[0] = KEEP_S
    spans.add("b", 0.0, 1.0)
    assert len(path.read_text().splitlines()) == 2
    spans.close()


def test_without_a_file_nothing_is_kept_and_closing_twice_is_fine(tmp_path: Path) -> None:
    spans = SpanLog(None, "x")
    spans.add("a", 0.0, 1.0)
    spans.close()
    spans.close()
    spans = SpanLog(tmp_path / "spans.jsonl", "x")
    spans.close()
    spans.add("late", 0.0, 1.0)
    spans.close()
    assert (tmp_path / "spans.jsonl").read_text() == ""
