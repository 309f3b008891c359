"""The newest step as a Prometheus text file, which a node exporter's textfile collector picks up."""

from __future__ import annotations

import os
from pathlib import Path

from astraflow.core.observability.config import PrometheusConfig
from astraflow.core.observability.prometheus_text import exposition
from astraflow.core.observability.sinks.base import LoggedRun, Record


class PrometheusSink:
    """Replaces the file at each step, so that a reader never sees half of it."""

    def __init__(self, config: PrometheusConfig, run: LoggedRun) -> None:
        default = run.directory / f"metrics-{run.model_id}.prom"
        self._path = Path(config.path).expanduser() if config.path else default
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._labels = {"experiment": run.experiment_name, "trial": run.trial_name, "model_id": run.model_id}
        self._open = True

    def write(self, record: Record) -> None:
        if not self._open:
            raise ValueError("the sink is closed")
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(exposition({**record.stats, "step": float(record.step)}, self._labels), "utf-8")
            draft.replace(self._path)
        finally:
            draft.unlink(missing_ok=True)  # of a full disk

    def close(self) -> None:
        self._open = False
