"""The seam of metric sinks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One step's statistics."""

    step: int
    """The training step; 0 before the first."""
    time: float
    """Unix time of the commit, in seconds."""
    stats: Mapping[str, float]
    """Flat names, as `ppo/loss` or `rollout/reward`."""


class LoggedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink may tell about the run whose steps it takes."""

    experiment_name: str
    trial_name: str
    model_id: str
    directory: Path
    """The run directory."""
    metrics_file: str = "metrics.jsonl"
    """Name of the model's own in it."""
    config: Mapping[str, Any] = {}
    """The resolved configuration; empty where there is none."""

    @property
    def name(self) -> str:
        """Tells the run's models apart."""
        return f"{self.trial_name}-{self.model_id}"

    @property
    def group(self) -> str:
        """Holds the run's models together."""
        return f"{self.experiment_name}_{self.trial_name}"


class Sink(Protocol):
    """Takes one record a step. Constructing it fails at once (an AstraFlowError or OSError) where it cannot work."""

    def write(self, record: Record) -> None:
        """Keep or show the record before returning. ValueError after `close`."""

    def close(self) -> None:
        """Give back what is held; writing afterwards is an error."""


class MemorySink:
    """Keeps records, for tests."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._open = True

    def write(self, record: Record) -> None:
        if not self._open:
            raise ValueError("the sink is closed")
        self.records.append(record)

    def close(self) -> None:
        self._open = False
