"""StatsLogger: a step's statistics go to every sink that is configured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from astraflow.core.observability.config import StatsLoggerConfig
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.sinks.base import Record, Sink
from astraflow.core.observability.sinks.console import ConsoleSink
from astraflow.core.observability.sinks.jsonl import JsonlSink
from astraflow.errors import ConfigError, DataError, boundary


class StatsLogger:
    """Writes each step to all sinks. A sink that cannot start, or fails later, is an error that names it."""

    def __init__(
        self, run_dir: RunDirectory, config: StatsLoggerConfig, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._sinks: dict[str, Sink] = {}
        makers: dict[str, tuple[bool, Callable[[], Sink]]] = {
            "jsonl": (config.jsonl.enabled, lambda: JsonlSink(run_dir.metrics)),
            "console": (config.console.enabled, ConsoleSink),
        }
        for name, (enabled, make) in makers.items():
            if enabled:
                with boundary(ConfigError, f"stats_logger.{name} cannot start"):
                    self._sinks[name] = make()

    def commit(self, step: int, stats: Mapping[str, float]) -> None:
        """Write one step. DataError names the sink that failed."""
        record = Record(step=step, time=self._clock(), stats={name: float(value) for name, value in stats.items()})
        for name, sink in self._sinks.items():
            with boundary(DataError, f"stats_logger.{name} failed at step {step}"):
                sink.write(record)

    def close(self) -> None:
        for name, sink in self._sinks.items():
            with boundary(DataError, f"stats_logger.{name} failed to close"):
                sink.close()
