from pathlib import Path

import pytest

from astraflow.core.observability.sinks.base import Record
from astraflow.core.observability.sinks.jsonl import JsonlReader, JsonlSink


def test_lines_are_read_as_they_are_completed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = JsonlReader(path)
    assert reader.read() == []
    sink = JsonlSink(path)
    sink.write(Record(step=1, time=2.0, stats={"loss": 0.5}))
    assert reader.read() == [{"step": 1, "time": 2.0, "loss": 0.5}]
    assert reader.read() == []
    with path.open("a") as file:
        file.write('{"step": 2')
        file.flush()
        assert reader.read() == []
        file.write(', "time": 3}\n')
    assert reader.read() == [{"step": 2, "time": 3}]
    sink.close()


def test_a_second_sink_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        sink = JsonlSink(path)
        sink.write(Record(step=step, time=0.0, stats={}))
        sink.close()
    assert [line["step"] for line in JsonlReader(path).read()] == [1, 2]


@pytest.mark.parametrize("torn", [b'{"step": 2, "ti', b'{"step": 2, "name": "' + b"x" * 100_000])
@pytest.mark.parametrize("before", [b'{"step": 1}\n', b""])
def test_a_last_line_that_was_torn_by_a_kill_is_cut_off(tmp_path: Path, before: bytes, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(before + torn)
    reader = JsonlReader(path)
    first = reader.read()
    sink = JsonlSink(path)
    sink.write(Record(step=2, time=0.0, stats={}))
    sink.close()
    assert path.read_bytes() == before + b'{"step":2,"time":0.0}\n'
    assert [line["step"] for line in first + reader.read()] == ([1, 2] if before else [2])
