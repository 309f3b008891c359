"""What goes to a RaaS at once, and how often a task may be refused.

An order is cut into bodies that the peer takes: its limit is on bytes, and rows may be of any size below it. A task
that is refused again and again is not asked for again for ever: it has failed, with what was said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astraflow.core.data import Failed, encode
from astraflow.core.data.trajectory import GroupResult
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.http import BODY_LIMIT

ORDER_BYTES = BODY_LIMIT // 2
"""Bytes of tasks in one body; a longer task travels alone."""

ROW_BYTES = BODY_LIMIT - 2**16
"""The longest row that fits into a body of its own, with what is said beside it."""

REFUSALS = 5
"""Times in a row that a task may be refused before it has failed."""

REMEMBERED = 4096
"""Tasks whose refusals are counted, the newest."""


def bodies(tasks: Sequence[m.Task]) -> Iterator[list[m.Task]]:
    """Yield the tasks in order, as many at a time as a body takes, one at least."""
    body: list[m.Task] = []
    size = 0
    for task in tasks:
        bytes_of_task = len(encode(task))
        if body and size + bytes_of_task > ORDER_BYTES:
            yield body
            body, size = [], 0
        body.append(task)
        size += bytes_of_task
    if body:
        yield body


class Refusals:
    """How often each task was refused since one RaaS took it."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def taken(self, group_id: int) -> None:
        """A RaaS accepted a task."""
        self._counts.pop(group_id, None)

    def refused(self, group_id: int) -> bool:
        """Count a refusal; True where it was one too many."""
        count = self._counts.pop(group_id, 0) + 1
        if count >= REFUSALS:
            return True
        self._counts[group_id] = count
        if len(self._counts) > REMEMBERED:
            del self._counts[next(iter(self._counts))]
        return False


def failed(task: m.Task, reason: str) -> m.PulledItem:
    """The result of a task that nobody takes."""
    episodes = (Failed("refused", reason),) * (task.n_samples or 1)
    return m.PulledItem(
        task_id=task.task_id, lease=task.lease, result=GroupResult(group_id=task.group_id, episodes=episodes)
    )
