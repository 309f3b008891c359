"""How long a hook call takes, start of Python included: alone, and with several agents at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from astraflow.errors import ConfigError
from astraflow.evolution.traces.capture import ROOT_VARIABLE
from astraflow.evolution.traces.files import read_lines
from astraflow.evolution.traces.trace import Event


class HookTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of hook calls."""

    writers: int
    calls: int
    valid_lines: int
    distinct_sequences: int
    median_ms: float
    p95_ms: float
    max_ms: float
    python_median_ms: float
    """Of an empty Python program, called in turn with the hook: what the machine and its load cost."""
    python_p95_ms: float


def bench_hooks(hook: Path, writers: int, calls_each: int) -> HookTimes:
    """Call a hook script from several threads at once, all on one session of a fresh folder; count what it wrote."""
    if not hook.is_file():
        raise ConfigError(f"no hook at {hook}: run this from the repository root")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, ROOT_VARIABLE: folder}
        with ThreadPoolExecutor(writers) as pool:
            jobs = [pool.submit(_calls, hook, environment, writer, calls_each) for writer in range(writers)]
            pairs = [pair for job in jobs for pair in job.result()]
        events = read_lines(Path(folder) / "meta" / "raw" / "bench" / "events.jsonl", Event)
    times = sorted(hook_ms for hook_ms, _ in pairs)
    empty = sorted(empty_ms for _, empty_ms in pairs)
    return HookTimes(
        writers=writers,
        calls=len(times),
        valid_lines=len(events),
        distinct_sequences=len({event.sequence for event in events}),
        median_ms=_percentile(times, 0.5),
        p95_ms=_percentile(times, 0.95),
        max_ms=round(times[-1], 1),
        python_median_ms=_percentile(empty, 0.5),
        python_p95_ms=_percentile(empty, 0.95),
    )


def _calls(hook: Path, environment: dict[str, str], writer: int, count: int) -> list[tuple[float, float]]:
    """Milliseconds of each hook call, and of an empty program right after it."""
    times = []
    for number in range(count):
        payload = {
            "session_id": "bench",
            "hook_event_name": "PostToolUse",
            "tool_name": "Read",
            "tool_input": {"file_path": f"src/module_{writer}.py"},
            "tool_response": {"content": "x = 1\n" * 300},
            "tool_use_id": f"call-{writer}-{number}",
            "duration_ms": 5,
        }
        hook_ms = _timed([sys.executable, str(hook)], environment, json.dumps(payload).encode())
        times.append((hook_ms, _timed([sys.executable, "-c", ""], environment, b"")))
    return times


def _timed(command: list[str], environment: dict[str, str], data: bytes) -> float:
    start = time.perf_counter()
    subprocess.run(command, input=data, env=environment, check=True)
    return (time.perf_counter() - start) * 1000


def _percentile(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
