"""Spans of a filling batch, on a clock of the test's own."""

import json
from pathlib import Path

from astraflow.core.observability.spans import SpanLog
from astraflow.dataflow.filling import Filling


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def recorded(path: Path, spans: SpanLog) -> list[tuple[str, float, float]]:
    spans.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["name"], line["start"] - 100, line["seconds"]) for line in lines]


def test_time_is_split_where_the_batch_is_full(tmp_path: Path) -> None:
    clock = Clock()
    spans = SpanLog(tmp_path / "spans.jsonl", "dataflow", clock=clock)
    filling = Filling(spans, "model0", needed=2)
    for now, ready in ((101, 1), (103, 2), (104, 3)):
        clock.now = float(now)
        filling.changed(ready)
    clock.now = 107.0
    filling.served(ready=1)
    clock.now = 108.0
    filling.changed(ready=2)
    assert recorded(tmp_path / "spans.jsonl", spans) == [("collect", 0, 3), ("hold", 3, 4), ("collect", 7, 1)]


def test_a_full_batch_that_went_stale_is_collected_again(tmp_path: Path) -> None:
    clock = Clock()
    spans = SpanLog(tmp_path / "spans.jsonl", "dataflow", clock=clock)
    filling = Filling(spans, "model0", needed=1)
    clock.now = 101.0
    filling.changed(1)
    clock.now = 103.0
    filling.changed(0)
    clock.now = 104.0
    filling.changed(1)
    filling.served(ready=5)
    clock.now = 106.0
    filling.served(ready=4)
    assert recorded(tmp_path / "spans.jsonl", spans) == [
        ("collect", 0, 1),
        ("hold", 1, 2),
        ("collect", 3, 1),
        ("hold", 4, 0),
        ("hold", 4, 2),
    ]
