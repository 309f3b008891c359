"""How many more groups a RaaS takes: its concurrency less what runs and queues; none before a verified version."""

from __future__ import annotations

from astraflow.core.protocol.messages import Availability
from astraflow.raas.state import TaskTable


def availability(table: TaskTable, max_concurrency: int, ready: bool) -> Availability:
    """Groups that could start at once if they were submitted now."""
    free = max(0, max_concurrency - table.running - table.queued)
    return Availability(
        available=free if ready else 0,
        inflight=table.running,
        max_concurrency=max_concurrency,
        queued=table.queued,
    )
