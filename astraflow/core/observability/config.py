"""Keys of the metric sinks (`stats_logger`)."""

from __future__ import annotations

from astraflow.core.config import Section


class JsonlConfig(Section):
    """metrics.jsonl in the run directory: one line a step."""

    enabled: bool = True


class ConsoleConfig(Section):
    """One plain line a step in the train worker's log."""

    enabled: bool = True


class StatsLoggerConfig(Section):
    """Where a step's statistics go."""

    jsonl: JsonlConfig = JsonlConfig()
    console: ConsoleConfig = ConsoleConfig()
