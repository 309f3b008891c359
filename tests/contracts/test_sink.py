"""Every metric sink keeps this contract."""

from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.core.observability.sinks.base import MemorySink, Record, Sink
from astraflow.core.observability.sinks.console import ConsoleSink
from astraflow.core.observability.sinks.jsonl import JsonlSink

SINKS: dict[str, Callable[[Path], Sink]] = {
    "memory": lambda folder: MemorySink(),
    "jsonl": lambda folder: JsonlSink(folder / "metrics.jsonl"),
    "console": lambda folder: ConsoleSink(),
}


@pytest.fixture(params=SINKS)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    return SINKS[request.param](tmp_path)


def test_it_takes_records_in_order_and_odd_values(sink: Sink) -> None:
    for step, stats in enumerate(({}, {"a/b@k": 1.0}, {"x": float("inf"), "y": float("nan"), "z": -0.0})):
        sink.write(Record(step=step, time=0.0, stats=stats))
    sink.close()


def test_it_can_be_closed_twice(sink: Sink) -> None:
    sink.close()
    sink.close()


def test_writing_to_a_closed_sink_is_an_error(sink: Sink) -> None:
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.write(Record(step=1, time=0.0, stats={}))
