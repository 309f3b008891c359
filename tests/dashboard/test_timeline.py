import pytest

from astraflow.dashboard import timeline as module
from astraflow.dashboard.timeline import Kind, timeline


def span(process: str, name: str, start: float, seconds: float, **attributes: object) -> dict[str, object]:
    return {"name": name, "process": process, "start": start, "seconds": seconds, **attributes}


SPANS = [
    span("raas-0", "generate", 10.0, 2.0, version=1),
    span("raas-0", "pull", 10.5, 1.0),
    span("raas-0", "generate", 13.0, 1.0),
    span("dataflow", "collect", 10.0, 3.0),
    span("train_worker-model0", "train", 12.0, 2.0),
    span("train_worker-model0", "publish", 14.0, 1.0),
]


def test_rows_follow_the_way_of_a_version_with_what_goes_on_beside_below() -> None:
    drawn = timeline(SPANS)
    assert drawn.rows == ("train_worker-model0", "dataflow", "raas-0", "raas-0 · pull")
    assert drawn.seconds == 5.0
    assert {bar.name: bar.kind for bar in drawn.bars}["collect"] is Kind.WAIT
    assert drawn.bars[0].start == 0.0
    assert next(bar for bar in drawn.bars if bar.name == "generate").detail == "version 1"


def test_what_no_span_of_a_raas_covers_is_a_bubble() -> None:
    idle = [(bar.start, bar.seconds) for bar in timeline(SPANS).bars if bar.kind is Kind.IDLE]
    assert idle == [(2.0, 1.0), (4.0, 1.0)]


def test_shares_of_the_run() -> None:
    shares = {(s.process, s.name): (s.share, s.count) for s in timeline(SPANS).shares}
    assert shares["raas-0", "generate"] == (pytest.approx(0.6), 2)
    assert shares["raas-0", "idle"] == (pytest.approx(0.4), 2)
    assert shares["raas-0", "pull"] == (pytest.approx(0.2), 1)
    assert shares["train_worker-model0", "train"] == (pytest.approx(0.4), 1)


def test_of_a_long_run_the_newest_bars_are_drawn_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BARS", 3)
    drawn = timeline([span("dataflow", "collect", float(i), 1.0) for i in range(10)])
    assert [bar.start for bar in drawn.bars] == [7.0, 8.0, 9.0]
    assert drawn.left_out == 7
    assert drawn.shares[0].count == 10


def test_no_spans_no_timeline() -> None:
    assert timeline([]).bars == ()
