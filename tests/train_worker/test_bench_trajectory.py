from __future__ import annotations

import pytest

from astraflow.train_worker import bench_trajectory


def test_more_elements_change_at_higher_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    rows = bench_trajectory.measure("tiny-0.2m", lines.append)
    assert [row["learning_rate"] for row in rows] == list(bench_trajectory.RATES)
    assert 0 < rows[0]["density"] < rows[1]["density"] < rows[2]["density"] < 0.5
    assert all(row["delta_bytes"] == pytest.approx(row["bytes_per_change"] * row["changed"]) for row in rows)
    assert len(lines) == 3
