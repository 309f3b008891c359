"""StatsLogger: a step's statistics go to every sink that is configured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from astraflow.core.observability.config import StatsLoggerConfig
from astraflow.core.observability.sinks.base import LoggedRun, Record, Sink
from astraflow.core.observability.sinks.console import ConsoleSink
from astraflow.core.observability.sinks.jsonl import JsonlSink
from astraflow.errors import ConfigError, DataError, boundary
from astraflow.registry import find_module, load_target

_SINKS = "astraflow.core.observability.sinks"
OPTIONAL: Mapping[str, str] = {
    "prometheus": f"{_SINKS}.prometheus:PrometheusSink",
    "tensorboard": f"{_SINKS}.tensorboard:TensorBoardSink",
    "wandb": f"{_SINKS}.wandb:WandbSink",
    "swanlab": f"{_SINKS}.swanlab:SwanLabSink",
    "trackio": f"{_SINKS}.trackio:TrackioSink",
}
"""Sink → its class, loaded only where it is enabled; built from (its section, LoggedRun)."""


class StatsLogger:
    """Writes each step to all sinks. A sink that cannot start, or fails later, is an error that names it."""

    def __init__(self, run: LoggedRun, config: StatsLoggerConfig, clock: Callable[[], float] = time.time) -> None:
        missing = missing_packages(config)
        if missing:
            raise ConfigError("\n".join(f"stats_logger.{path}: {text}" for path, text in missing.items()))
        self._clock = clock
        self._sinks: dict[str, Sink] = {}
        for name, enabled in config.enabled.items():
            if enabled:
                with boundary(ConfigError, f"stats_logger.{name} cannot start"):
                    self._sinks[name] = _sink(name, run, config)

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


def missing_packages(config: StatsLoggerConfig) -> dict[str, str]:
    """Return sink → what to install, for each enabled sink whose package is not there; nothing is imported."""
    return {
        extra: f"needs the package {package}: pip install 'astraflow[{extra}]'"
        for package, extra in config.packages.items()
        if find_module(package) is None
    }


def _sink(name: str, run: LoggedRun, config: StatsLoggerConfig) -> Sink:
    if name == "jsonl":
        return JsonlSink(run.directory / run.metrics_file)
    if name == "console":
        return ConsoleSink()
    sink: Sink = load_target(OPTIONAL[name], "sink")(getattr(config, name), run)
    return sink
