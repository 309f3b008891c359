"""Weights & Biases."""

from __future__ import annotations

import re

import wandb

from astraflow.core.observability.config import WandbConfig
from astraflow.core.observability.sinks.base import LoggedRun, Record

_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_.-]")


class WandbSink:
    """One run for each model, continued under the same id after a restart."""

    def __init__(self, config: WandbConfig, run: LoggedRun) -> None:
        parts = (run.group, run.model_id, config.id_suffix)
        self._run: wandb.Run | None = wandb.init(
            mode=config.mode,
            project=config.project or run.experiment_name,
            name=config.name or run.name,
            entity=config.entity,
            group=config.group or run.group,
            tags=list(config.tags),
            id=_NOT_IN_AN_ID.sub("-", "_".join(part for part in parts if part)),
            resume="allow",
            dir=str(run.directory),
            config=dict(run.config),
            # the process's own output goes to its log and nowhere else
            settings=wandb.Settings(console="off", silent=True),
        )

    def write(self, record: Record) -> None:
        if self._run is None:
            raise ValueError("the sink is closed")
        self._run.log(dict(record.stats), step=record.step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
        self._run = None
