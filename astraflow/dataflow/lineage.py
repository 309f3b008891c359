"""What the audit knows of each model's steps and versions: in a lineage step follows step, and numbers never repeat.

A step that follows on none in the log was trained elsewhere: on groups of which this ledger knows nothing, or which it
has given out again since. So it is where an older ledger was put beside a newer trainer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from astraflow.core.protocol.messages import ReadyRequest
from astraflow.dataflow.ledger import Acknowledge, Rewind, Settle
from astraflow.dataflow.records import Announced


class Lineage:
    """Follows the steps and versions of every model; `problem` is told what does not hold."""

    def __init__(self, problem: Callable[[str], None]) -> None:
        self._problem = problem
        self._announced: dict[str, int] = defaultdict(int)
        """model → the step of its newest version."""
        self._trained: dict[str, int] = defaultdict(int)
        """model → the last step whose batch was acknowledged."""
        self._settled: dict[str, int] = defaultdict(int)
        self._highest: dict[str, int] = defaultdict(lambda: -1)

    def ready(self, request: ReadyRequest) -> None:
        """Follow a trainer that registered, perhaps back at a step."""
        model_id, step = request.model_id, request.recovered_step or 0
        if step > self._announced[model_id]:
            self._problem(
                f"the trainer of {model_id} is back at step {step}, but the log goes only up to step "
                f"{self._announced[model_id]}: it is older than the trainer's state"
            )
        if request.recovered_step is not None and step < self._settled[model_id]:
            self._problem(
                f"the trainer of {model_id} is back at step {step}, but what steps up to {self._settled[model_id]} "
                "trained was let go"
            )
        self._announced[model_id] = step

    def announced(self, record: Announced) -> None:
        """Follow a version."""
        model_id, before = record.model_id, self._announced[record.model_id]
        if record.step not in (before, before + 1):
            self._problem(
                f"version {record.version} of {model_id} is of step {record.step}, which does not follow step {before}"
            )
        if record.version <= self._highest[model_id]:
            self._problem(f"version {record.version} of {model_id} comes after version {self._highest[model_id]}")
        self._announced[model_id] = record.step
        self._highest[model_id] = max(record.version, self._highest[model_id])

    def trained(self, event: Acknowledge) -> None:
        """Follow the acknowledgement of a batch."""
        before = self._trained[event.model_id]
        if event.step < 0:
            return
        if event.step != before + 1:
            self._problem(f"step {event.step} of {event.model_id} is trained after step {before}")
        self._trained[event.model_id] = event.step

    def back(self, event: Rewind) -> None:
        """Follow a trainer back to a step."""
        before = self._trained[event.model_id]
        if event.step > before:
            self._problem(f"{event.model_id} goes back to step {event.step}, but the last that was trained is {before}")
        self._trained[event.model_id] = event.step

    def settled(self, event: Settle) -> None:
        """Follow what is never taken back."""
        self._settled[event.model_id] = max(event.step, self._settled[event.model_id])
