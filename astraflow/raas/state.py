"""The state of a RaaS without IO: its tasks, and the one question of weight updates (what may happen now?).

No await, no clock. TaskTable guards: a task is in exactly one of queued, running, finished, until it is acknowledged,
cancelled or reset away; then nothing of it appears again. UpdatePhase guards: one update at a time per model, numbers
only grow, and one number never means two digests (invariant 5).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from astraflow.core.data import LeaseId
from astraflow.core.data.trajectory import Episode, GroupResult
from astraflow.core.protocol.messages import Accepted, Lane, PulledItem, Task, VersionState
from astraflow.core.workflow.api.group import SAMPLE_BITS
from astraflow.errors import InvariantError

LANES: tuple[Lane, ...] = ("eval", "train")
"""In order of precedence."""
ACKNOWLEDGED_KEPT = 4096
"""Acknowledged ids that are remembered, so that a submit which was repeated late starts nothing twice."""
REPLY_BYTES = 32 * 2**20
"""About the most that one pull answers with (one result always fits)."""
_TOKEN_BYTES = 13
"""ids, mask, logprobs, versions of one token on the wire."""


class TaskPhase(StrEnum):
    """Where a task is."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Slot:
    """One task of one lane, from submission to acknowledgement."""

    task: Task
    workflow_id: str
    lane: Lane
    phase: TaskPhase = TaskPhase.QUEUED
    result: GroupResult | None = None
    """Of a finished task; None where the workflow rejected it."""
    size: int = 0
    """About its result's bytes on the wire."""


@dataclass(slots=True)
class _LaneSlots:
    queued: OrderedDict[str, Slot] = field(default_factory=OrderedDict)
    running: dict[str, Slot] = field(default_factory=dict)
    finished: OrderedDict[str, Slot] = field(default_factory=OrderedDict)


class TaskTable:
    """All tasks of a RaaS that were not acknowledged yet."""

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._lanes: dict[Lane, _LaneSlots] = {lane: _LaneSlots() for lane in LANES}
        self._acknowledged: OrderedDict[str, LeaseId] = OrderedDict()
        self.epoch = 0
        """Resets so far."""
        self.submitted: dict[Lane, int] = dict.fromkeys(LANES, 0)
        """Tasks accepted so far, by lane."""

    def submit(self, tasks: Iterable[Task], workflow_id: str, lane: Lane) -> list[Accepted]:
        """Queue tasks; one that is known, running, finished or acknowledged, is accepted and not run again.

        A name that is known by another lease is refused.
        """
        return [self._submit_one(task, workflow_id, lane) for task in tasks]

    def start(self, most: int) -> list[Slot]:
        """Move queued tasks to running while fewer than `most` run, evaluation first."""
        started: list[Slot] = []
        for lane in self._lanes.values():
            while lane.queued and self.running < most:
                task_id, slot = lane.queued.popitem(last=False)
                slot.phase = TaskPhase.RUNNING
                lane.running[task_id] = slot
                started.append(slot)
        return started

    def finish(self, slot: Slot, result: GroupResult | None) -> bool:
        """Keep a running task's result; False where the task was cancelled or reset away meanwhile."""
        if slot.phase is not TaskPhase.RUNNING or self._slots.get(slot.task.task_id) is not slot:
            return False
        lane = self._lanes[slot.lane]
        del lane.running[slot.task.task_id]
        slot.phase, slot.result, slot.size = TaskPhase.FINISHED, result, _wire_size(result)
        lane.finished[slot.task.task_id] = slot
        return True

    def has_results(self, lane: Lane) -> bool:
        return bool(self._lanes[lane].finished)

    def results(self, lane: Lane, most: int) -> list[PulledItem]:
        """The oldest results that are not acknowledged; the same ones again until they are."""
        items: list[PulledItem] = []
        size = 0
        for task_id, slot in self._lanes[lane].finished.items():
            size += slot.size
            if len(items) >= most or (items and size > REPLY_BYTES):
                break
            items.append(PulledItem(task_id=task_id, lease=slot.task.lease, result=slot.result))
        return items

    def acknowledge(self, task_ids: Iterable[str]) -> None:
        """Forget results that arrived; unknown ids, and tasks that have none yet, are passed over."""
        for task_id in task_ids:
            slot = self._slots.get(task_id)
            if slot is not None and slot.phase is TaskPhase.FINISHED:
                self._forget(slot)
                self._acknowledged[task_id] = slot.task.lease
        while len(self._acknowledged) > ACKNOWLEDGED_KEPT:
            self._acknowledged.popitem(last=False)

    def cancel(self, task_ids: Iterable[str]) -> list[Slot]:
        """Forget tasks in any phase; those that ran are to be ended by the caller."""
        named = dict.fromkeys(task_ids)  # each once
        found = [slot for task_id in named if (slot := self._slots.get(task_id)) is not None]
        for slot in found:
            self._forget(slot)
        return found

    def reset(self, lane: Lane) -> list[Slot]:
        """Forget all tasks of a lane: no result of what was submitted before ever appears. Begins a new epoch."""
        self.epoch += 1
        return self.cancel([task_id for task_id, slot in self._slots.items() if slot.lane == lane])

    @property
    def running(self) -> int:
        return sum(len(lane.running) for lane in self._lanes.values())

    @property
    def queued(self) -> int:
        return sum(len(lane.queued) for lane in self._lanes.values())

    def in_lane(self, lane: Lane) -> tuple[int, int]:
        """Running and queued tasks of one lane."""
        return len(self._lanes[lane].running), len(self._lanes[lane].queued)

    def validate(self) -> None:
        """InvariantError unless each task is in exactly one place, the one that its phase names."""
        for task_id, slot in self._slots.items():
            lane = self._lanes[slot.lane]
            places = {
                TaskPhase.QUEUED: lane.queued,
                TaskPhase.RUNNING: lane.running,
                TaskPhase.FINISHED: lane.finished,
            }
            held = [phase for phase, place in places.items() if place.get(task_id) is slot]
            if held != [slot.phase]:
                raise InvariantError(f"task {task_id} is {slot.phase} and held as {held}")
        total = sum(len(lane.queued) + len(lane.running) + len(lane.finished) for lane in self._lanes.values())
        if total != len(self._slots):
            raise InvariantError(f"{total} tasks are held, {len(self._slots)} are known")

    def _submit_one(self, task: Task, workflow_id: str, lane: Lane) -> Accepted:
        slot = self._slots.get(task.task_id)
        known = slot.task.lease if slot is not None else self._acknowledged.get(task.task_id)
        if known is not None and known != task.lease:
            # its result would name a lease that nobody holds
            return Accepted(task_id=task.task_id, accepted=False, reason=f"known already, by another lease: {known}")
        if known is not None:
            return Accepted(task_id=task.task_id, accepted=True, reason="known already")
        if task.n_samples is not None and not 1 <= task.n_samples < 1 << SAMPLE_BITS:
            return Accepted(task_id=task.task_id, accepted=False, reason=f"n_samples = {task.n_samples}")
        slot = Slot(task, workflow_id, lane)
        self._slots[task.task_id] = slot
        self._lanes[lane].queued[task.task_id] = slot
        self.submitted[lane] += 1
        return Accepted(task_id=task.task_id, accepted=True)

    def _forget(self, slot: Slot) -> None:
        task_id = slot.task.task_id
        del self._slots[task_id]
        lane = self._lanes[slot.lane]
        for place in (lane.queued, lane.running, lane.finished):
            place.pop(task_id, None)


class Phase(StrEnum):
    """What a model's weight update is at."""

    IDLE = "idle"
    """No version was served yet and none is being pulled."""
    PULLING = "pulling"
    """Bytes are fetched and verified beside generation; a newer version may take the place of this one."""
    SWAPPING = "swapping"
    """Between two decode steps the engine's weights are overwritten and proven, or what they were is restored."""
    SERVING = "serving"
    """A verified version is served and no other is on its way."""


class Verdict(StrEnum):
    """What is to be done about an announced version."""

    BEGIN = "begin"
    """Pull it now."""
    REPLACE = "replace"
    """End the pull that is under way, it is superseded; pull this one."""
    QUEUE = "queue"
    """An older one is being applied: this one is next. Whatever waited is superseded."""
    JOIN = "join"
    """It is under way: wait for it."""
    DONE = "done"
    """It is served."""
    REFUSE = "refuse"
    """It is older than what is served or under way."""
    CONFLICT = "conflict"
    """Its number is known under another digest: an alarm."""


class Decision(msgspec.Struct, frozen=True):
    verdict: Verdict
    reason: str = ""


class Announced(msgspec.Struct, frozen=True):
    """A version by number and manifest digest."""

    number: int
    digest: str


class UpdatePhase:
    """Which version a model serves, which is on its way, which is next."""

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.served: VersionState | None = None
        self.current: Announced | None = None
        """Being pulled or applied."""
        self.waiting: Announced | None = None
        """To be pulled when the current one has been applied."""
        self.alarms = 0
        """Times that a number was announced with a second digest."""

    def notify(self, number: int, digest: str) -> Decision:
        """A version was announced."""
        new = Announced(number, digest)
        served = None if self.served is None else Announced(self.served.number, self.served.digest)
        for known in (served, self.current, self.waiting):
            if known is not None and known.number == number and known.digest != digest:
                self.alarms += 1
                return Decision(Verdict.CONFLICT, f"version {number} has digest {known.digest} here, not {digest}")
        if served is not None and number <= served.number:
            verdict = Verdict.DONE if number == served.number else Verdict.REFUSE
            return Decision(verdict, f"version={number} <= local={served.number}")
        if self.current is None:
            self.current, self.phase = new, Phase.PULLING
            return Decision(Verdict.BEGIN)
        newest = self.waiting or self.current
        if number < newest.number:
            return Decision(Verdict.REFUSE, superseded(number, newest.number))
        if number == newest.number:
            return Decision(Verdict.JOIN)
        if self.phase is Phase.PULLING:
            self.current = new
            return Decision(Verdict.REPLACE)
        self.waiting = new
        return Decision(Verdict.QUEUE)

    def swap(self) -> None:
        """The bytes are there and right: from here on the update runs to its end."""
        if self.phase is not Phase.PULLING:
            raise InvariantError(f"an update cannot go from {self.phase} to swapping")
        self.phase = Phase.SWAPPING

    def end(self, served: VersionState | None) -> Announced | None:
        """The update under way ended: with a version served, or (None) without; returns the one to pull next."""
        if self.current is None:
            raise InvariantError("an update ended that never began")
        if served is not None:
            self.served = served
        self.current, self.waiting = self.waiting, None
        if self.current is not None and self.served is not None and self.current.number <= self.served.number:
            self.current = None  # the pull brought a newer version than was asked for
        idle = Phase.IDLE if self.served is None else Phase.SERVING
        self.phase = idle if self.current is None else Phase.PULLING
        return self.current


def superseded(number: int, newer: int) -> str:
    """The reason that the announcer of a version is given when a newer one took its place."""
    return f"version={number} was superseded by version={newer}"


def _wire_size(result: GroupResult | None) -> int:
    if result is None:
        return 0
    episodes = [episode for episode in result.episodes if isinstance(episode, Episode)]
    return _TOKEN_BYTES * sum(t.length for episode in episodes for t in episode.trajectories)
