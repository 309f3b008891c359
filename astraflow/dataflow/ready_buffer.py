"""One model's groups that wait for a batch: in which order they are served, and which one goes when it is full.

What is evicted is what would be served next: of all it has the least time left before it is too old. Plain state.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice

from astraflow.core.data import Group
from astraflow.errors import UnknownNameError


class ReadyBuffer:
    """Ready groups, found by the step of the version that decides their age."""

    def __init__(self, order: str = "fifo", most: int | None = None) -> None:
        """order: of ORDERS, else UnknownNameError. most: groups it holds; None: any number."""
        if order not in ORDERS:
            raise UnknownNameError("buffer order", order, list(ORDERS))
        self._order = ORDERS[order]
        self._most = most
        self._groups: OrderedDict[int, tuple[Group, int]] = OrderedDict()
        # step → group ids in order of arrival
        self._by_step: dict[int, dict[int, None]] = {}
        self._prompts: Counter[tuple[str, int]] = Counter()
        self.samples = 0
        """Of all groups together."""

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def groups(self) -> list[Group]:
        """In order of arrival."""
        return [group for group, _ in self._groups.values()]

    def holds(self, group: Group) -> bool:
        """Does a group of the same prompt and agent role wait here?"""
        return self._prompts[group.agent, group.prompt_id] > 0

    def add(self, group: Group, step: int) -> list[Group]:
        """Take a group whose age is that of `step`; returns what had to go for it, which may be itself."""
        self._groups[group.group_id] = (group, step)
        self._by_step.setdefault(step, {})[group.group_id] = None
        self._prompts[group.agent, group.prompt_id] += 1
        self.samples += group.samples
        return self.take(0 if self._most is None else max(0, len(self) - self._most))

    def take(self, n: int) -> list[Group]:
        """Remove and return the next n."""
        return [self._remove(group_id) for group_id in list(islice(self._order(self._groups, self._by_step), n))]

    def take_samples(self, samples: int) -> list[Group]:
        """Remove and return the next groups that have so many samples together; at least one."""
        n = found = 0
        for group_id in self._order(self._groups, self._by_step):
            n, found = n + 1, found + self._groups[group_id][0].samples
            if found >= samples:
                break
        return self.take(n)

    def take_older(self, step: int) -> list[Group]:
        """Remove and return the groups of steps before `step`."""
        old = [group_id for s in sorted(self._by_step) if s < step for group_id in sorted(self._by_step[s])]
        return [self._remove(group_id) for group_id in old]

    def _remove(self, group_id: int) -> Group:
        group, step = self._groups.pop(group_id)
        self.samples -= group.samples
        same = self._by_step[step]
        del same[group_id]
        if not same:
            del self._by_step[step]
        prompt = (group.agent, group.prompt_id)
        self._prompts[prompt] -= 1
        if not self._prompts[prompt]:
            del self._prompts[prompt]
        return group


Arrived = Mapping[int, tuple[Group, int]]
BySteps = Mapping[int, Mapping[int, None]]


def _first_in_first_out(arrived: Arrived, by_step: BySteps) -> Iterator[int]:
    return iter(arrived)


def _earliest_deadline_first(arrived: Arrived, by_step: BySteps) -> Iterator[int]:
    return chain.from_iterable(by_step[step] for step in sorted(by_step))


ORDERS: Mapping[str, Callable[[Arrived, BySteps], Iterator[int]]] = {
    "fifo": _first_in_first_out,
    "edf": _earliest_deadline_first,
}
"""Name → the group ids in the order in which they are served. edf: what is too old first comes first."""
