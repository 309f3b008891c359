"""Spans: timed intervals of all processes of a run, appended to spans.jsonl.

Cheap enough to stay on: a span is one small dict and its encoding; lines are written in blocks, each with one append,
so that processes do not cut each other's lines.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

BLOCK = 64
"""Spans that are kept in memory before they are written."""


class SpanLog:
    """Records spans of one process. Thread-safe; call `close` so that the last block is written."""

    def __init__(self, path: Path, process: str, block: int = BLOCK) -> None:
        self._process = process
        self._block = block
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    @contextmanager
    def span(self, name: str, **attributes: str | int | float) -> Iterator[None]:
        """Record the interval of the body: {name, process, start (unix seconds), seconds, …attributes}."""
        start, tick = time.time(), time.perf_counter()
        try:
            yield
        finally:
            self.add(name, start, time.perf_counter() - tick, **attributes)

    def add(self, name: str, start: float, seconds: float, **attributes: str | int | float) -> None:
        """Record an interval that was measured elsewhere."""
        line = {"name": name, "process": self._process, "start": start, "seconds": seconds, **attributes}
        with self._lock:
            self._lines.append(msgspec.json.encode(line))
            if len(self._lines) >= self._block:
                self._write()

    def close(self) -> None:
        with self._lock:
            self._write()
            os.close(self._descriptor)

    def _write(self) -> None:
        if self._lines:
            os.write(self._descriptor, b"\n".join(self._lines) + b"\n")
            self._lines.clear()
