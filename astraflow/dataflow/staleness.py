"""Invariants 2 and 3: how much may run, and what is too old to train on.

Admission. With batch B (groups), staleness bound η and v the last trained step, at most (η+v+1)·B groups are accepted
or running. The group that fills place p = accepted + running is consumed, in order, at step ⌊p/B⌋ ≤ v+η, so its
tokens, made by version v or later, are at most η steps old then. Every group that is dropped frees its place. A group
that trains again takes a place like any other, and those that later batches will give to such groups are reserved.

Consumption. Order is by completion, a lease can be lost and a step can be slow, so the bound is checked again for
every token when a batch is served: what is older than v−η is dropped, or masked, and counted by length decile,
because staleness hits long episodes harder (LAW 26).

Versions are compared by the step that made them: numbers jump after a recovery, steps do not.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Sequence

import msgspec
import numpy as np

from astraflow.core.data import Group, Trajectory, Turn
from astraflow.dataflow.ledger import ACCEPTED, RUNNING, Moved, State
from astraflow.errors import InvariantError

HELD = ACCEPTED - {State.TRAINED}

UNKNOWN, ABANDONED = -1, -2
"""Instead of a step: the number was never published; a recovery left its lineage behind."""


def capacity(max_concurrent: int, batch: int, max_staleness: int, step: int, *, running: int, accepted: int) -> int:
    """Groups that may start now; negative where limits were lowered under what runs.

    max_concurrent: groups the pool can run at once; batch: B, groups per step; max_staleness: η; step: v, the last
    trained step; running: queued or leased; accepted: done, ready, served or trained (net of dropped).
    """
    return min(
        max(1, max_concurrent) - running,
        (max_staleness + step + 1) * batch - (accepted + running),
    )


class Admission:
    """One model's credit, owned here and nowhere else: it follows what moves in the ledger."""

    def __init__(
        self,
        batch: int,
        max_staleness: int,
        step: int = 0,
        held: int = 0,
        running: int = 0,
        replays: int = 0,
        samples: int = 0,
    ) -> None:
        """step, held and running restore: v, the groups that are done, ready or served already, and what is queued.

        replays: places of each batch that are kept for groups which train again; later batches' are taken already.
        samples: of a whole group, where all the above and the bound count samples; 0: groups.
        """
        self.batch = batch
        self.max_staleness = max_staleness
        self.reserved = max_staleness * replays
        self.samples = samples
        self.step = step
        self.running = running
        self.held = held
        """Done, ready or served."""

    @property
    def accepted(self) -> int:
        """Places that are taken for good or held: a step has consumed a whole batch's, whatever was in it."""
        return self.step * self.batch + self.held

    def moved(self, moved: Moved) -> None:
        """Account for one transition of the model's groups or of an occurrence."""
        before, after = self._weight(moved.before, moved.samples), self._weight(moved.after, moved.samples)
        self.running += after * (moved.after in RUNNING) - before * (moved.before in RUNNING)
        self.held += after * (moved.after in HELD) - before * (moved.before in HELD)

    def advance(self, step: int) -> None:
        """A step was trained: what its batch held has left, and counts as that batch from now on."""
        if step < self.step:
            raise InvariantError(f"the last trained step goes back from {self.step} to {step}")
        self.step = step

    def capacity(self, max_concurrent: int, step: int | None = None) -> int:
        """Groups that may start now on a RaaS that serves the version of `step` (None: the newest).

        A RaaS that lags keeps working only on places that its older version can still fill in time.
        """
        at = self.step if step is None else min(step, self.step)
        accepted, group = self.accepted + self.reserved, self.samples or 1
        most = max(1, max_concurrent) * group
        places = capacity(most, self.batch, self.max_staleness, at, running=self.running, accepted=accepted)
        # a group may start while one place is free: batches take whole groups, too
        return -(-places // group)

    def _weight(self, state: State | None, samples: int) -> int:
        """Places that a group in a state takes: samples that it lost are known once it is ready."""
        if not self.samples:
            return 1
        return samples if samples and state in (State.READY, State.SERVED, State.TRAINED) else self.samples

    def validate(self, states: Counter[State], trained: int, replayed: int = 0) -> None:
        """Raise InvariantError unless the credit equals the counters of a ledger that holds this model only.

        replayed: places of served and trained batches that were taken by replays.
        """
        running = sum(states[state] for state in RUNNING)
        accepted = sum(states[state] for state in ACCEPTED) + trained + replayed
        if (self.running, self.accepted) != (running, accepted):
            raise InvariantError(
                f"credit says {self.running} running, {self.accepted} accepted; the ledger {running}, {accepted}"
            )


class VersionSteps:
    """Which step made each version of one model."""

    def __init__(self) -> None:
        self._steps = np.empty(0, np.int64)

    def restore(self, steps: Sequence[int]) -> None:
        """Take over what `listed` returned."""
        self._steps = np.array(steps, np.int64)

    def listed(self) -> list[int]:
        """The step of each number; negative where there is none."""
        steps: list[int] = self._steps.tolist()
        return steps

    def abandon(self, after_step: int) -> None:
        """A trainer was restored at a step: versions made by later ones are of an abandoned lineage."""
        self._steps[self._steps > after_step] = ABANDONED

    def abandoned(self, versions: np.ndarray) -> bool:
        """Is one of these versions of an abandoned lineage, or one that was passed over and is never announced?"""
        known = versions[(versions >= 0) & (versions < len(self._steps))]
        return bool((self._steps[known] < 0).any())

    def ahead(self, versions: np.ndarray, most: int) -> int | None:
        """The highest of these versions that may still be announced, at most so many numbers on; None for none."""
        newest = len(self._steps) - 1
        coming = versions[(versions > newest) & (versions <= newest + most)]
        return int(coming.max()) if len(coming) else None

    def publish(self, version: int, step: int) -> None:
        """Remember a version; numbers and steps never go back."""
        if version < len(self._steps):
            raise InvariantError(f"version {version} is not newer than {len(self._steps) - 1}")
        gap = np.full(version - len(self._steps), UNKNOWN, np.int64)
        self._steps = np.concatenate([self._steps, gap, [step]])

    @property
    def newest(self) -> int | None:
        """The highest version published; None before the first."""
        return len(self._steps) - 1 if len(self._steps) else None

    def step_of(self, version: int) -> int | None:
        """The step that made a version; None for one that was never published."""
        step = int(self._steps[version]) if 0 <= version < len(self._steps) else -1
        return None if step < 0 else step

    def steps_of(self, versions: np.ndarray) -> np.ndarray:
        """int64, the step of each version; negative where it is of no step of this lineage."""
        known = (versions >= 0) & (versions < len(self._steps))
        steps = np.full(versions.shape, UNKNOWN, np.int64)
        steps[known] = self._steps[versions[known]]
        return steps


def deciding_step(group: Group, steps: VersionSteps, *, mask: bool) -> int:
    """The step whose age decides whether a group is too old: of its oldest token, or its newest where old ones leave
    the loss (`mask`)."""
    of_tokens = steps.steps_of(group.versions)
    return int(of_tokens.max() if mask else of_tokens.min())


def mask_stale(group: Group, steps: VersionSteps, oldest_step: int) -> Group | None:
    """The group with tokens older than `oldest_step` out of the loss; None where nothing is left to train."""
    trajectories = tuple(_mask(t, steps, oldest_step) for t in group.trajectories)
    if not any(t.sampled for t in trajectories):
        return None
    return msgspec.structs.replace(group, trajectories=trajectories)


def _mask(trajectory: Trajectory, steps: VersionSteps, oldest_step: int) -> Trajectory:
    a = trajectory.arrays
    old = a.mask.astype(bool) & (steps.steps_of(a.versions) < oldest_step)
    if not old.any():
        return trajectory
    turn = Turn(
        ids=a.ids,
        mask=np.where(old, 0, a.mask).astype(a.mask.dtype),
        logprobs=np.where(old, 0, a.logprobs).astype(a.logprobs.dtype),
        versions=np.where(old, -1, a.versions).astype(a.versions.dtype),
    )
    return msgspec.structs.replace(trajectory, turns=(turn,))


class LengthDeciles:
    """Which tenth of the recently finished groups a group's length falls in."""

    def __init__(self, window: int = 1000) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._window = window

    def observe(self, length: int) -> None:
        """Count a finished group's longest sample (sampled tokens)."""
        self._recent.append(length)
        insort(self._sorted, length)
        if len(self._recent) > self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def decile(self, length: int) -> int:
        """0 for the shortest tenth to 9 for the longest."""
        if not self._sorted:
            return 0
        return min(9, 10 * bisect_left(self._sorted, length) // len(self._sorted))
