"""SwanLab."""

from __future__ import annotations

from typing import Any

import swanlab

from astraflow.core.observability.config import SwanLabConfig
from astraflow.core.observability.sinks.base import LoggedRun, Record

_MODES = {"cloud": "online"}
"""What recipes call a mode → what the package calls it."""


class SwanLabSink:
    """One run for each model."""

    def __init__(self, config: SwanLabConfig, run: LoggedRun) -> None:
        self._run: Any | None = swanlab.init(
            mode=_MODES.get(config.mode, config.mode),
            project=config.project or run.experiment_name,
            name=config.name or run.name,
            group=config.group or run.group,
            tags=list(config.tags),
            log_dir=config.logdir or str(run.directory / "swanlab"),
            config=dict(run.config),
        )

    def write(self, record: Record) -> None:
        if self._run is None:
            raise ValueError("the sink is closed")
        if record.stats:  # it takes a step without numbers for a mistake
            self._run.log(dict(record.stats), step=record.step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
        self._run = None
