"""One plain line a step in the process's log."""

from __future__ import annotations

import logging

from astraflow.core.observability.sinks.base import Record

logger = logging.getLogger("astraflow.stats")


class ConsoleSink:
    """Logs the numbers by name, as `step 3: ppo/loss 0.0123, …`."""

    def __init__(self) -> None:
        self._open = True

    def write(self, record: Record) -> None:
        if not self._open:
            raise ValueError("the sink is closed")
        shown = ", ".join(f"{name} {value:.4g}" for name, value in sorted(record.stats.items()))
        logger.info("step %d: %s", record.step, shown)

    def close(self) -> None:
        self._open = False
