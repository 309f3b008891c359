"""`astraflow bench dataflow`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import typer

from astraflow.dataflow.bench import bench
from astraflow.launch.summary import write_summary


def bench_dataflow(seconds: float, durable: bool, json: Path | None) -> None:
    """Print what was measured; with `json`, write it too."""
    with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as directory:
        result = bench(Path(directory), seconds, durable=durable)
    t = result.throughput
    typer.echo(f"ledger: {'durable' if durable else 'in memory'}")
    typer.echo(f"{t.episodes_per_s:,.0f} episodes/s, {t.tokens_per_s:,.0f} tokens/s over {t.episodes:,} episodes")
    cpu = ", ".join(f"{name} {cost:.0f} us" for name, cost in t.cpu_us.items())
    typer.echo(f"processor time an episode: {cpu}")
    typer.echo(f"GET /batch while groups come: p50 {t.batch_ms['p50']:.1f} ms, p95 {t.batch_ms['p95']:.1f} ms")
    typer.echo(f"GET /batch of 256 x 1,000 tokens that are ready: {result.ready_batch_ms:.1f} ms")
    typer.echo(f"memory of Dataflow: {t.memory_mb[0]:.0f} MB after the warm-up, {t.memory_mb[1]:.0f} MB at the end")
    for buffered, cost in result.episode_cost_us.items():
        typer.echo(f"one episode with {buffered:,} in the buffer: {cost:.1f} us")
    if json is not None:
        write_summary(result, json)
