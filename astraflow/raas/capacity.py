"""How many more groups a RaaS takes: its concurrency less what runs and queues; none before a verified version."""

from __future__ import annotations

from collections.abc import Mapping

from astraflow.core.protocol.messages import Availability, EngineLoad
from astraflow.raas.state import TaskTable


def availability(
    table: TaskTable, max_concurrency: int, ready: bool, engines: Mapping[str, EngineLoad]
) -> Availability:
    """Groups that could start at once if they were submitted now; `engines` by model_id."""
    free = max(0, max_concurrency - table.running - table.queued)
    return Availability(
        available=free if ready else 0,
        inflight=table.running,
        max_concurrency=max_concurrency,
        queued=table.queued,
        engines=dict(engines),
    )
