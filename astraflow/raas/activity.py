"""What a RaaS is busy with, as spans: `generate` and `evaluate` while groups of the lane run.

A span is cut when an engine starts to serve another version, so that each says under which version it ran; where no
span is, the RaaS had nothing to do. Plain state.
"""

from __future__ import annotations

from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol.messages import Lane

SPAN_OF_LANE: dict[Lane, str] = {"train": "generate", "eval": "evaluate"}


class Activity:
    """Fed with the start and end of every group."""

    def __init__(self, spans: SpanLog) -> None:
        self._spans = spans
        self._running: dict[Lane, int] = dict.fromkeys(SPAN_OF_LANE, 0)
        self._ended: dict[Lane, int] = dict.fromkeys(SPAN_OF_LANE, 0)
        self._since: dict[Lane, float] = {}
        self._version = -1

    def started(self, lane: Lane) -> None:
        """A group of the lane runs."""
        self._running[lane] += 1
        self._since.setdefault(lane, self._spans.now())

    def ended(self, lane: Lane) -> None:
        """A group of the lane ended, however."""
        self._running[lane] -= 1
        self._ended[lane] += 1
        if self._running[lane] == 0:
            self._record(lane)

    def serves(self, version: int) -> None:
        """Another version is served from now on."""
        for lane in list(self._since):
            self._record(lane)
            self._since[lane] = self._spans.now()
        self._version = version

    def _record(self, lane: Lane) -> None:
        since = self._since.pop(lane)
        groups, self._ended[lane] = self._ended[lane], 0
        self._spans.add(SPAN_OF_LANE[lane], since, self._spans.now() - since, version=self._version, groups=groups)
