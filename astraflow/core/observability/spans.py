"""Spans: timed intervals of all processes of a run, appended to spans.jsonl.

Cheap enough to stay on: a span is one small dict and its encoding; lines are written in blocks, whole or not at all, so
that processes do not cut each other's lines. People read them, so a block that cannot be written ends no run.

    train_worker-<model>   wait_batch, train, publish, notify, eval (waits for the scores), save
    dataflow               collect (a batch's groups are awaited), hold (the batch awaits its trainer), evaluate
    raas-<n>               generate, evaluate (groups of that lane run; cut at each new version), pull, swap
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from astraflow.core.observability.lines import LineFile

log = logging.getLogger(__name__)

BLOCK = 64
"""Spans that are kept in memory before they are written."""

KEEP_S = 2.0
"""A block that is not full is written with the first span after so many seconds: a run that dies loses little."""


class SpanLog:
    """Records spans of one process. Thread-safe; call `close` so that the last block is written."""

    def __init__(
        self,
        path: Path | None,
        process: str,
        block: int = BLOCK,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """path None: nothing is kept. clock: unix seconds."""
        self._process = process
        self._block = block
        self._clock = clock
        self._lines: list[bytes] = []
        self._written = clock()
        self._lock = threading.Lock()
        self._path = path
        self._file = None if path is None else LineFile(path)

    def now(self) -> float:
        """Unix time in seconds, as `start` of a span."""
        return self._clock()

    @contextmanager
    def span(self, name: str, **attributes: str | int | float) -> Iterator[None]:
        """Record the interval of the body: {name, process, start (unix seconds), seconds, …attributes}."""
        start, tick = self._clock(), time.perf_counter()
        try:
            yield
        finally:
            self.add(name, start, time.perf_counter() - tick, **attributes)

    def add(self, name: str, start: float, seconds: float, **attributes: str | int | float) -> None:
        """Record an interval that was measured elsewhere."""
        if self._file is None:
            return
        line = {"name": name, "process": self._process, "start": start, "seconds": seconds, **attributes}
        with self._lock:
            self._lines.append(msgspec.json.encode(line))
            if len(self._lines) >= self._block or self._clock() - self._written >= KEEP_S:
                self._write()

    def close(self) -> None:
        """Write what is left; again is fine, and later spans are not kept."""
        with self._lock:
            self._write()
            if self._file is not None:
                self._file.close()
            self._file = None

    def _write(self) -> None:
        if not self._lines or self._file is None:
            return
        try:
            self._file.append(b"\n".join(self._lines) + b"\n")
        except OSError as error:
            log.warning("%d spans are not kept: %s: %s", len(self._lines), self._path, error.strerror)
        self._lines.clear()
        self._written = self._clock()
