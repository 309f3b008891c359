"""trackio."""

from __future__ import annotations

from typing import Any

import trackio

from astraflow.core.observability.config import TrackioConfig
from astraflow.core.observability.sinks.base import LoggedRun, Record


class TrackioSink:
    """One run for each model, continued under the same name after a restart."""

    def __init__(self, config: TrackioConfig, run: LoggedRun) -> None:
        online = {"space_id": config.space_id or f"{run.experiment_name}-trackio"} if config.mode == "online" else {}
        self._run: Any | None = trackio.init(
            project=config.project or run.experiment_name,
            name=config.name or run.name,
            group=config.group or run.group,
            config=dict(run.config),
            resume="allow",
            embed=False,  # there is no notebook to show it in
            auto_log_gpu=False,
            auto_log_cpu=False,
            **online,
        )

    def write(self, record: Record) -> None:
        if self._run is None:
            raise ValueError("the sink is closed")
        self._run.log(dict(record.stats), step=record.step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
        self._run = None
