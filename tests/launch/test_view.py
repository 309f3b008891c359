import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from astraflow.core.observability.sinks.base import Record
from astraflow.core.observability.sinks.jsonl import JsonlReader, JsonlSink
from astraflow.launch.complaints import Complaints
from astraflow.launch.progress import Progress
from astraflow.launch.view import LiveView, PlainView, StatusThread, View, Watcher, cells, terminal_view


class Status:
    waiting = (
        {
            "who": "trainer of model0",
            "on": "8 more groups; dropped since the last batch: 48 zero_advantage",
            "since": 0.0,
        },
    )
    latest: Mapping[str, Any] = {"status": "ready", "live": {}, "waiting": waiting}


def progress_of(*steps: int) -> Progress:
    progress = Progress(total_steps=3, staleness_bound=2)
    for step in steps:
        record = {"step": step, "time": 10.0 * step, "version": step, "staleness/max": 1.0}
        record |= {"rollout/tokens_per_s": 1234.5, "train/tokens_per_s": 9876.5, "rollout/reward_mean": 0.25}
        progress.take(record | ({"eval/a/avg@k": 50.0, "eval/a/greedy": 60.0} if step == 2 else {}))
    return progress


def test_the_columns_that_the_view_shows() -> None:
    assert cells(progress_of(1, 2)) == {
        "step": "2/3",
        "reward": "0.250",
        "accuracy": "sampled 50.0%, greedy 60.0%",
        "staleness": "1≤2",
        "rollout tok/s": "1,234",
        "train tok/s": "9,876",
        "version": "2",
        "eta": "0:10",
    }


def test_before_the_first_step_columns_are_empty() -> None:
    shown = cells(Progress(total_steps=3, staleness_bound=2))
    assert {name: text for name, text in shown.items() if text} == {"step": "0/3", "version": "0"}


def test_plain_lines_are_one_a_step_and_one_an_evaluation() -> None:
    stream = io.StringIO()
    view = terminal_view(stream)
    assert isinstance(view, PlainView)
    for steps in ((1,), (1,), (1, 2), (1, 2)):
        view.show(progress_of(*steps))
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "step 1/3",
        "step 2/3",
        "evaluation after step 2: sampled 50.0%, greedy 60.0%",
    ]


def test_the_live_view_draws_and_keeps_lines() -> None:
    stream = io.StringIO()
    view = LiveView(Console(file=stream, force_terminal=True, width=160))
    view.say("a line [that stays]")
    view.show(progress_of(1, 2))
    view.close()
    text = stream.getvalue()
    for words in ("a line [that stays]", "evaluation after step 2", "reward", "1,234", "2/3"):
        assert words in text


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_a_watcher_shows_each_completed_step(kind: str, tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160)
    view: View = PlainView(stream) if kind == "plain" else LiveView(console)
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    complaints = Complaints(tmp_path / "dataflow.log")
    metrics = JsonlReader(tmp_path / "metrics.jsonl")
    watcher = Watcher(view, Progress(3, 2), metrics, cast(StatusThread, Status()), complaints)
    (tmp_path / "dataflow.log").write_text("2026-01-02 03:04:05,678 WARNING astraflow.x: 7 leases are over\n")
    for step in (1, 2, 3):
        sink.write(Record(step=step, time=float(step), stats={}))
    watcher.tick()
    watcher.tick()  # too soon: nothing is read again
    view.close()
    sink.close()
    assert "dataflow: 7 leases are over" in stream.getvalue()
    assert "trainer of model0 has waited" in stream.getvalue()
    assert "dropped since the last batch: 48 zero_advantage" in " ".join(stream.getvalue().split())
    for step in (1, 2, 3):
        assert f"{step}/3" in stream.getvalue()
