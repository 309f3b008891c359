"""Spans of what a RaaS is busy with, on a clock of the test's own."""

import json
from pathlib import Path

from astraflow.core.observability.spans import SpanLog
from astraflow.raas.activity import Activity


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_span_lasts_while_groups_run_and_is_cut_at_a_version(tmp_path: Path) -> None:
    clock = Clock()
    spans = SpanLog(tmp_path / "spans.jsonl", "raas-0", clock=clock)
    activity = Activity(spans)
    activity.serves(3)
    activity.started("train")
    activity.started("train")
    clock.now = 2.0
    activity.ended("train")
    activity.serves(4)
    clock.now = 5.0
    activity.ended("train")
    clock.now = 6.0
    activity.started("eval")
    clock.now = 7.0
    activity.ended("eval")
    spans.close()
    lines = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    assert [(s["name"], s["start"], s["seconds"], s["version"], s["groups"]) for s in lines] == [
        ("generate", 0, 2, 3, 1),
        ("generate", 2, 3, 4, 1),
        ("evaluate", 6, 1, 4, 1),
    ]


def test_an_idle_raas_has_no_span(tmp_path: Path) -> None:
    spans = SpanLog(tmp_path / "spans.jsonl", "raas-0")
    activity = Activity(spans)
    activity.serves(1)
    activity.serves(2)
    spans.close()
    assert (tmp_path / "spans.jsonl").read_text() == ""
