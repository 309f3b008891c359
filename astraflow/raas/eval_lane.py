"""Lane eval under its documented names: /eval_start, /eval_submit, /eval_pull, /eval_end."""

from __future__ import annotations

import msgspec

from astraflow.core.protocol import messages as m
from astraflow.raas.service import RaaSService


class EvalLane:
    """The service, for callers that only know these names."""

    def __init__(self, service: RaaSService) -> None:
        self._service = service

    async def mark(self, request: m.Empty) -> m.Ok:
        """Start or end a round: the lane needs neither."""
        return m.Ok()

    async def submit(self, request: m.SubmitRequest) -> list[m.Accepted]:
        return await self._service.submit(msgspec.structs.replace(request, lane="eval"))

    async def pull(self, request: m.PullRequest) -> m.EvalPullResult:
        items = await self._service.pull(msgspec.structs.replace(request, lane="eval"))
        table = self._service.table
        running, queued = table.in_lane("eval")
        return m.EvalPullResult(items=items, inflight=running, pending=queued, total_submitted=table.submitted["eval"])
