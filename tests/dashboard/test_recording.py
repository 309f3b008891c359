from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.dashboard.recording import read_recording
from astraflow.errors import DataError


def test_everything_is_read(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = read_recording(make_run(tmp_path / "run", trial_name="t"))
    assert run.name == "sums/t"
    assert run.staleness_bound == 2
    assert [record["step"] for record in run.records] == list(range(13))
    assert len(run.steps) == 12
    assert run.spans == sorted(run.spans, key=lambda span: span["start"])
    assert run.logs == {}


def test_logs_are_shown_of_a_run_that_did_not_finish(make_run: Callable[..., Path], tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", finished=False)
    (root / "logs" / "dataflow.log").write_text("\n".join(f"line {i}" for i in range(100)))
    (root / "logs" / "empty.log").touch()
    logs = read_recording(root).logs
    assert sorted(logs) == ["dataflow", "raas-0"]
    assert logs["dataflow"].split("\n") == [f"line {i}" for i in range(85, 100)]


def test_a_line_that_is_being_written_is_left_out(make_run: Callable[..., Path], tmp_path: Path) -> None:
    root = make_run(tmp_path / "run")
    with (root / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "ti')
    assert len(read_recording(root).records) == 13


def test_a_broken_file_is_named(make_run: Callable[..., Path], tmp_path: Path) -> None:
    root = make_run(tmp_path / "run")
    with (root / "spans.jsonl").open("a") as file:
        file.write("not json\n")
    with pytest.raises(DataError, match=r"spans\.jsonl"):
        read_recording(root)
