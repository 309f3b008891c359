from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.dashboard import curves
from astraflow.dashboard.curves import Look, smoothed, thinned
from astraflow.dashboard.recording import Recording, read_recording


@pytest.fixture
def run(make_run: Callable[..., Path], tmp_path: Path) -> Recording:
    return read_recording(make_run(tmp_path / "run"))


def test_reward_is_shown_raw_and_smoothed(run: Recording) -> None:
    raw, smooth = curves.reward([run])[0].curves
    assert (raw.look, smooth.look) == (Look.FAINT, Look.LINE)
    assert raw.x == smooth.x == [float(step) for step in range(1, 13)]
    assert raw.y[0] == smooth.y[0] == pytest.approx(0.25)


def test_accuracy_has_its_interval_as_shares(run: Recording) -> None:
    sampled, greedy = curves.accuracy([run])[0].curves
    assert sampled.x == [0.0, 4.0, 8.0, 12.0]
    assert sampled.y == pytest.approx([0.50, 0.54, 0.58, 0.62])
    assert sampled.low == pytest.approx([0.45, 0.49, 0.53, 0.57])
    assert sampled.high == pytest.approx([0.55, 0.59, 0.63, 0.67])
    assert greedy.y == pytest.approx([0.6] * 4)
    assert greedy.low is None


def test_staleness_is_shown_under_its_bound(run: Recording) -> None:
    bound = curves.staleness([run])[0].curves[-1]
    assert (bound.look, bound.x, bound.y) == (Look.LIMIT, [1.0, 12.0], [2.0, 2.0])


def test_lengths_and_cut_generations(run: Recording) -> None:
    lengths, cut = curves.lengths([run])
    assert [curve.y[0] for curve in lengths.curves] == [8.0, 9.0]
    assert cut.curves[0].y == pytest.approx([0.1] * 12)


def test_drops_are_what_each_step_added(run: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = curves.drops(run)
    assert stack.parts["zero advantage"] == [3.0] * 12
    assert "stale" not in stack.parts
    monkeypatch.setattr(curves, "MOST_BINS", 5)
    stack = curves.drops(run)
    assert stack.centres == [2.0, 5.0, 8.0, 11.0]
    assert stack.parts["zero advantage"] == [3.0] * 4


def test_values_that_were_not_finite_are_left_out(run: Recording) -> None:
    mismatch = curves.health([run])[-1].curves[0]
    assert 3.0 not in mismatch.x
    assert len(mismatch.x) == 11


def test_each_run_has_its_curves(run: Recording) -> None:
    assert [curve.run for curve in curves.throughput([run, run])[0].curves] == [0, 1]


def test_smoothing_starts_at_the_first_value() -> None:
    assert smoothed([2.0, 2.0, 2.0]) == pytest.approx([2.0] * 3)
    assert smoothed([0.0, 1.0], weight=0.5) == pytest.approx([0.0, 2 / 3])


def test_thinning_averages_equal_pieces() -> None:
    x, y = thinned(range(10), [float(i) for i in range(10)], most=5)
    assert x == y == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert thinned([1.0], [2.0], most=5) == ([1.0], [2.0])
    assert thinned([], [], most=5) == ([], [])
