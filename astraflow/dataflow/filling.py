"""When a batch filled up and when it was fetched: the spans `collect` and `hold` of one model.

    served ──collect──► enough groups are ready ──hold──► served

A long `collect` says that rollouts are the slower side, a long `hold` that the trainer is. Plain state.
"""

from __future__ import annotations

from astraflow.core.observability.spans import SpanLog


class Filling:
    """Fed with each change of a buffer."""

    def __init__(self, spans: SpanLog, model_id: str, needed: int) -> None:
        """needed: groups of a batch."""
        self._spans = spans
        self._model_id = model_id
        self._needed = needed
        self._since = spans.now()
        self._full = False

    def changed(self, ready: int) -> None:
        """So many groups are ready now; stale drops may undo that a batch was full."""
        if self._full != (ready >= self._needed):
            self._record("hold" if self._full else "collect")
            self._full = not self._full

    def served(self, ready: int) -> None:
        """A batch was fetched; so many groups are left."""
        self._record("hold" if self._full else "collect")
        self._full = ready >= self._needed

    def _record(self, name: str) -> None:
        now = self._spans.now()
        self._spans.add(name, self._since, now - self._since, model_id=self._model_id)
        self._since = now
