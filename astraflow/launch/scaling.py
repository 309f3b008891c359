"""More and fewer RaaS processes, by Dataflow's advice and within the limits of `raas.scaling`.

Advice is followed only while every process that was started serves, so that one answer to a lack is not given twice;
Dataflow measures anew after each change. Who is to go is drained: it finishes what it has and ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astraflow.core.protocol import DataflowClient
from astraflow.launch.local import LocalProcesses
from astraflow.launch.specs import ProcessSpec, launched
from astraflow.launch.view import StatusThread
from astraflow.raas.config import ScalingConfig


def change(advice: Mapping[str, Any], limits: ScalingConfig, running: int, serving: int) -> int:
    """RaaS to start, negative to stop. running: processes that are not leaving; serving: those that Dataflow has."""
    if running != serving:
        return 0
    wanted = running
    if advice.get("action") == "grow":
        wanted += int(advice["instances"])
    elif advice.get("action") == "shrink":
        wanted -= int(advice["instances"])
    return max(limits.min_instances, min(limits.max_instances, wanted)) - running


class Actuator:
    """Call `tick` often."""

    def __init__(
        self,
        limits: ScalingConfig,
        processes: LocalProcesses,
        started: Sequence[str],
        spec: Callable[[str], ProcessSpec],
        status: StatusThread,
        say: Callable[[str], None],
    ) -> None:
        """started: names of the RaaS that run already; spec: name → the process of that name."""
        self._limits = limits
        self._processes = processes
        self._names = list(started)
        self._next = len(started)
        self._spec = spec
        self._status = status
        self._say = say

    def tick(self) -> None:
        """Act on the newest advice, where it asks for something."""
        pool = self._status.latest.get("raas_pool")
        if pool is None:
            return
        self._names = [name for name in self._names if self._processes.runs(name)]
        # whoever leaves is in the pool until it has
        serving = {row["uid"] for row in pool["instances"] if row["health"] == "healthy"}
        difference = change(pool.get("advice", {}), self._limits, len(self._names), len(serving & set(self._names)))
        if difference:
            self._say(f"{abs(difference)} RaaS {'more' if difference > 0 else 'fewer'}: {pool['advice']['reason']}")
        for _ in range(difference):
            spec = self._spec(launched(self._next))
            self._next += 1
            self._processes.spawn([spec])
            self._names.append(spec.name)
        for _ in range(-difference):
            self._drain(self._names.pop())

    def _drain(self, name: str) -> None:
        async def drain(client: DataflowClient) -> None:
            await client.deregister_raas(name, drain=True, shutdown=True)

        self._status.ask(drain)
