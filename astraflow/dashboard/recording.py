"""What a run directory holds, as plain values. Nothing here is trusted: a run may have died at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from astraflow.core.config import load_tree
from astraflow.core.observability.failures import Failure, read_failures
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.sinks.jsonl import JsonlReader
from astraflow.dashboard.episodes import Episode, sample_episodes
from astraflow.errors import ConfigError, DataError, boundary

EPISODES = 50
LOG_LINES = 15
"""Last lines of each log that are shown of a run that did not finish."""

_LOG_BYTES = 8192


@dataclass(frozen=True)
class Recording:
    """A run as its directory tells it; what is missing is empty."""

    root: Path
    config: Mapping[str, Any]
    """The resolved configuration."""
    records: list[dict[str, Any]]
    """Lines of metrics.jsonl, by step."""
    spans: list[dict[str, Any]]
    """Lines of spans.jsonl, by start."""
    summary: Mapping[str, Any]
    """summary.json; empty where the run did not finish."""
    episodes: list[Episode]
    failures: list[Failure]
    """Why samples have no reward, by kind."""
    logs: Mapping[str, str]
    """Process → the end of its log; empty where the run finished."""

    @property
    def name(self) -> str:
        """experiment/trial, else the directory's name."""
        experiment = self.config.get("experiment", {})
        parts = [str(experiment[key]) for key in ("experiment_name", "trial_name") if experiment.get(key)]
        return "/".join(parts) or self.root.name

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The records of training steps."""
        return [record for record in self.records if record["step"] >= 1]

    @property
    def staleness_bound(self) -> int | None:
        """max_staleness of the configuration."""
        bound = self.config.get("dataflow", {}).get("buffer", {}).get("max_staleness")
        return None if bound is None else int(bound)


def read_recording(path: Path) -> Recording:
    """Read a run directory. ConfigError where it is none; DataError names a file that cannot be read."""
    run = RunDirectory(path, create=False)
    if not run.config.is_file() and not run.metrics.is_file():
        raise ConfigError(f"{path} is not a run directory: it holds neither config.yaml nor metrics.jsonl")
    summary = _summary(run.summary)
    return Recording(
        root=run.root,
        config=load_tree([run.config]).values if run.config.is_file() else {},
        records=_lines(run.metrics, "step"),
        spans=_lines(run.spans, "start"),
        summary=summary,
        episodes=sample_episodes(run, EPISODES),
        failures=read_failures(run.failures),
        logs={} if summary else _log_ends(run),
    )


def _lines(path: Path, order: str) -> list[dict[str, Any]]:
    """Its lines by the number that they have under `order`."""
    with boundary(DataError, str(path)):
        return sorted(JsonlReader(path).read(), key=lambda line: float(line[order]))


def _summary(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with boundary(DataError, str(path)):
        return dict(msgspec.json.decode(path.read_bytes()))


def _log_ends(run: RunDirectory) -> dict[str, str]:
    ends: dict[str, str] = {}
    for path in sorted((run.root / "logs").glob("*.log")):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        if lines:
            ends[path.stem] = "\n".join(lines[-LOG_LINES:])
    return ends
