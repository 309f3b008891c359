"""Whatever dies and however full the disk is: a file that outlives its writer holds whole records, and can go on."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from astraflow.core.data import Group, Value
from astraflow.core.data.trajectory import Episode
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.sinks.base import Record
from astraflow.core.observability.sinks.jsonl import JsonlSink
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol import messages as m
from astraflow.core.weight_manager.version_log import VersionLog
from astraflow.dashboard.report import write_report
from astraflow.dataflow.eval_log import EvalLog
from astraflow.dataflow.ledger import DropReason
from astraflow.dataflow.records import Kept, Started
from astraflow.dataflow.scripted import trajectory
from astraflow.dataflow.store import LedgerStore, read_log
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.errors import AstraFlowError
from astraflow.evolution.traces import capture
from astraflow.launch.summary import write_summary

WIDE = "w" * 400
"""Makes a record long, so that a limit falls into it."""


def group(number: int) -> Group:
    task = m.Task(task_id=WIDE, group_id=number, data={})
    rows = tuple(trajectory(task, i, Value(float(i)), (0, 0)) for i in range(2))
    return Group(group_id=number, task_id=WIDE, prompt_id=1, model_id="model0", trajectories=rows)


def metrics(run: Path, number: int) -> Path:
    with closing(JsonlSink(run / "metrics.jsonl")) as sink:
        sink.write(Record(step=number, time=0.0, stats={WIDE: 1.0}))
    return run / "metrics.jsonl"


def spans(run: Path, number: int) -> Path:
    with closing(SpanLog(run / "spans.jsonl", "dataflow")) as log:
        log.add(WIDE, float(number), 1.0)
    return run / "spans.jsonl"


def versions(run: Path, number: int) -> Path:
    path = run / "versions" / "served-a.jsonl"
    VersionLog(path, clock=lambda: 0.0).alarm("a", "model0", number, WIDE)
    return path


def trajectories(run: Path, number: int) -> Path:
    log = TrajectoryLog(RunDirectory(run))
    log.trained(group(number), 7)
    log.dropped(group(number), DropReason.STALE)
    log.collect("model0")()
    return run / "trajectories" / "step_000007.jsonl"


def evaluations(run: Path, number: int) -> Path:
    log = EvalLog(run / "evaluations", 2)
    rows = tuple(group(number).trajectories)
    log.scored("held_out", 0, WIDE, False, [Episode(trajectories=rows)])
    log.collect({"model0": 3})()
    return run / "evaluations" / "version_000003.jsonl"


def summary(run: Path, number: int) -> Path:
    write_summary({WIDE: number}, run / "summary.json")
    return run / "summary.json"


def events(run: Path, number: int) -> Path:
    call = {"hook_event_name": "PostToolUse", "session_id": "s1", "tool_name": "Read", "tool_input": {"file": WIDE}}
    capture.record(json.dumps(call).encode(), str(run / "traces"), frozenset({"PostToolUse"}), "PostToolUse")
    return run / "traces" / "meta" / "raw" / "s1" / "events.jsonl"


GROWING = [metrics, spans, versions, events]
WHOLE = [trajectories, evaluations, summary]


@contextmanager
def full_after(path: Path, more: int) -> Iterator[None]:
    """As if the disk had room for so many more bytes of a file: what goes beyond is written in part, then refused."""
    size = path.stat().st_size if path.exists() else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def records(path: Path) -> list[object]:
    """All that a file holds; an assertion where something in it is no whole record."""
    data = path.read_bytes()
    if path.suffix == ".json":
        return [json.loads(data)]
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize("write", [*GROWING, *WHOLE], ids=lambda write: write.__name__)
@pytest.mark.parametrize("more", [10, 300])
def test_what_a_full_disk_refused_is_not_there_in_part(
    write: Callable[[Path, int], Path], more: int, tmp_path: Path
) -> None:
    path = write(tmp_path, 1)
    before = records(path)
    with full_after(path if write in GROWING else tmp_path / "none", more), suppress(AstraFlowError, OSError):
        write(tmp_path, 2)
    assert records(path) == before
    write(tmp_path, 3)
    after = records(path)
    assert len(after) == (2 if write in GROWING else 1) * len(before)
    assert after[: len(before)] == before or write in WHOLE


@pytest.mark.parametrize("write", GROWING, ids=lambda write: write.__name__)
@pytest.mark.parametrize("torn", [b'{"step": 2, "ti', b'{"name": "' + b"x" * 100_000, b"\0" * 5000])
def test_what_a_death_left_torn_is_cut_off(write: Callable[[Path, int], Path], torn: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    with path.open("ab") as file:
        file.write(torn)
    write(tmp_path, 2)
    assert len(records(path)) == 2


def test_a_writer_that_lives_on_after_a_full_disk_tears_nobody_elses_lines(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    one, other = SpanLog(path, "dataflow", block=1), SpanLog(path, "raas-0", block=1)
    one.add("serve", 1.0, 1.0)
    with full_after(path, 40), suppress(OSError):
        other.add(WIDE, 2.0, 1.0)
    for log in (one, other):
        log.add("serve", 3.0, 1.0)
        log.close()
    assert [record["process"] for record in records(path)] == ["dataflow", "dataflow", "raas-0"]


def test_a_report_is_possible_after_a_full_disk(tmp_path: Path) -> None:
    for write in (metrics, spans, trajectories, evaluations):
        path = write(tmp_path, 1)
        with full_after(path if write in GROWING else tmp_path / "none", 300), suppress(AstraFlowError, OSError):
            write(tmp_path, 2)
        if write in GROWING:
            write(tmp_path, 3)
    with full_after(tmp_path / "none", 300), suppress(AstraFlowError, OSError):
        summary(tmp_path, 1)
    assert write_report([tmp_path]).is_file()


def test_a_ledger_goes_on_after_a_full_disk(tmp_path: Path) -> None:
    store = LedgerStore(tmp_path)
    store.commit([Started(0), Kept(group(1))])
    segment = next((tmp_path / "segments").iterdir())
    with full_after(segment, 300), pytest.raises(OSError, match="too large"):
        store.commit([Started(1), *(Kept(group(number)) for number in range(2, 50))])
    with full_after(segment, 300):
        store.close()  # in order, though there is no room for what it holds
    store = LedgerStore(tmp_path)
    assert store.kept == {1}
    store.commit([Started(2), Kept(group(60))])
    assert [store.read(number).group_id for number in (1, 60)] == [1, 60]
    store.close()
    assert list(read_log(tmp_path)) == [Started(0), Started(2)]


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    metrics(tmp_path, 1)
    nowhere = tmp_path / "report"
    nowhere.symlink_to("/dev/null")
    write_report([tmp_path], nowhere)
    assert nowhere.is_char_device()
