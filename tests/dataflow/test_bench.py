"""The bench measures what it says: real processes, real figures."""

from pathlib import Path

import pytest

from astraflow.dataflow.audit import audit
from astraflow.dataflow.bench import bench, group_cost_us


@pytest.mark.system
def test_a_short_bench_gives_figures_and_a_whole_ledger(tmp_path: Path) -> None:
    result = bench(tmp_path, 0.5, sizes=(10, 1000))
    assert result.throughput.episodes >= 32 * 8
    assert result.throughput.tokens_per_s == pytest.approx(512 * result.throughput.episodes_per_s, rel=0.01)
    assert result.throughput.cpu_us["dataflow"] > 0
    assert result.ready_batch_ms > 0
    assert sorted(result.group_cost_us) == [10, 1000]
    report = audit(tmp_path / "throughput" / "ledger")
    assert report.conserved, report.problems
    assert 8 * report.trained >= result.throughput.episodes


def test_a_groups_cost_does_not_grow_with_those_beside_it() -> None:
    few, many = (min(group_cost_us(n, 300) for _ in range(5)) for n in (100, 30_000))
    assert many < 4 * few
