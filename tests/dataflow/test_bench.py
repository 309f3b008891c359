"""The bench measures what it says: real processes, real figures."""

import asyncio
import sys
from pathlib import Path
from types import FrameType

import pytest

from astraflow.dataflow.audit import audit
from astraflow.dataflow.bench import bench
from astraflow.dataflow.bench_buffer import BufferLoad


@pytest.mark.system
def test_a_short_bench_gives_figures_and_a_whole_ledger(tmp_path: Path) -> None:
    result = bench(tmp_path, 0.5, sizes=(10, 1000))
    assert result.throughput.episodes >= 32 * 8
    assert result.throughput.tokens_per_s == pytest.approx(512 * result.throughput.episodes_per_s, rel=0.01)
    assert result.throughput.cpu_us["dataflow"] > 0
    assert result.ready_batch_ms > 0
    assert sorted(result.episode_cost_us) == [10, 1000]
    report = audit(tmp_path / "throughput" / "ledger")
    assert report.conserved, report.problems
    assert 8 * report.trained >= result.throughput.episodes


def test_the_work_of_a_batch_does_not_grow_with_the_buffer() -> None:
    few, many = (calls_of_a_step(BufferLoad(episodes)) for episodes in (80, 40_000))
    assert 1000 < many < 1.1 * few


def calls_of_a_step(load: BufferLoad) -> int:
    """Function calls, a measure of work that a busy machine does not change."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def body() -> None:
        await load.step()
        sys.setprofile(count)
        try:
            await load.step()
        finally:
            sys.setprofile(None)

    asyncio.run(body())
    return calls


def test_what_waits_stays_in_the_buffer() -> None:
    load = BufferLoad(400)
    asyncio.run(load.step())
    assert load.ready == 400
