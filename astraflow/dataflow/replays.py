"""Groups that were trained and may train again, while all that trains of them is within the staleness bound.

A replay takes a place of its batch: admission counts it, so that sampling slows down by as much as is replayed. Which
groups are replayed follows from the ledger, the seed and the version, so a Dataflow that is started again chooses the
same. Plain state.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from astraflow.core.data import Group
from astraflow.errors import UnknownNameError


def replay_count(n: int, ratio: float) -> int:
    """Replayed groups in a batch of n: the floor of n times the ratio, which is clamped to 0 to 1."""
    # a product such as 100 · 0.29 ends just below the whole number that is meant
    return math.floor(n * min(max(ratio, 0.0), 1.0) + 1e-9)


class ReplayPool:
    """One model's trained groups, in the order in which they were trained."""

    def __init__(self, model_id: str, policy: str = "uniform", seed: int = 0) -> None:
        """policy: of POLICIES, else UnknownNameError."""
        if policy not in POLICIES:
            raise UnknownNameError("replay policy", policy, list(POLICIES))
        self._choose = POLICIES[policy]
        self._seed = (seed, zlib.crc32(model_id.encode()))
        self._groups: dict[int, tuple[Group, int]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> list[Group]:
        return [group for group, _ in self._groups.values()]

    def add(self, group: Group, step: int) -> None:
        """A group was trained; its age is that of `step`. One that is known keeps its place."""
        self._groups.setdefault(group.group_id, (group, step))

    def expire(self, oldest: int) -> None:
        """Let go of groups of steps before `oldest`."""
        for group_id in [group_id for group_id, (_, step) in self._groups.items() if step < oldest]:
            del self._groups[group_id]

    def pick(self, n: int, version: int) -> list[Group]:
        """Up to n distinct groups to train again in the batch that follows a version. They stay here."""
        return self._choose(self.groups, n, np.random.default_rng((*self._seed, version)))


Chooser = Callable[[Sequence[Group], int, np.random.Generator], list[Group]]


def _uniform(groups: Sequence[Group], n: int, rng: np.random.Generator) -> list[Group]:
    return [groups[i] for i in rng.permutation(len(groups))[:n]]


def _newest(groups: Sequence[Group], n: int, rng: np.random.Generator) -> list[Group]:
    return list(reversed(groups))[:n]


def _reward_spread(groups: Sequence[Group], n: int, rng: np.random.Generator) -> list[Group]:
    last_trained_first = groups[::-1]
    return sorted(last_trained_first, key=lambda group: -group.reward_std)[:n]


POLICIES: Mapping[str, Chooser] = {"uniform": _uniform, "newest": _newest, "reward_spread": _reward_spread}
"""Name → which groups. reward_spread takes those whose rewards differ most, among equals the last trained."""
