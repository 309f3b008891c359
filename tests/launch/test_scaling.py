"""Advice becomes processes, within limits."""

from pathlib import Path
from typing import Any

import pytest

from astraflow.core.config import Section
from astraflow.launch.scaling import Actuator, change
from astraflow.launch.specs import ProcessSpec
from astraflow.raas.config import ScalingConfig

LIMITS = ScalingConfig(min_instances=1, max_instances=4)


@pytest.mark.parametrize(
    ("action", "instances", "running", "serving", "difference"),
    [
        ("grow", 1, 2, 2, 1),
        ("grow", 9, 2, 2, 2),
        ("grow", 1, 4, 4, 0),
        ("shrink", 1, 2, 2, -1),
        ("shrink", 9, 3, 3, -2),
        ("shrink", 1, 1, 1, 0),
        ("hold", 0, 2, 2, 0),
        ("grow", 1, 3, 2, 0),
        ("shrink", 1, 3, 2, 0),
    ],
)
def test_advice_is_followed_within_limits_and_once(
    action: str, instances: int, running: int, serving: int, difference: int
) -> None:
    assert change({"action": action, "instances": instances}, LIMITS, running, serving) == difference


class Nothing(Section):
    pass


class Processes:
    """Remembers what was started; `ended` is what has left."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: set[str] = set()

    def spawn(self, specs: list[ProcessSpec]) -> None:
        self.started += [spec.name for spec in specs]

    def runs(self, name: str) -> bool:
        return name not in self.ended


class Status:
    """Dataflow's pool as a test says; drains are answered by a client that remembers them."""

    def __init__(self) -> None:
        self.latest: dict[str, Any] = {}
        self.drained: list[str] = []

    def pool(self, action: str, instances: int, *uids: str) -> None:
        rows = [{"uid": uid, "health": "healthy"} for uid in uids]
        advice = {"action": action, "instances": instances, "reason": "measured"}
        self.latest = {"raas_pool": {"instances": rows, "advice": advice}}

    def ask(self, call: Any) -> None:
        with pytest.raises(StopIteration):
            call(self).send(None)

    async def deregister_raas(self, uid: str, *, drain: bool, shutdown: bool) -> None:
        assert drain
        assert shutdown
        self.drained.append(uid)


def test_processes_come_and_go_with_the_advice(tmp_path: Path) -> None:
    processes, status, said = Processes(), Status(), []

    def spec(name: str) -> ProcessSpec:
        return ProcessSpec(name, "m", Nothing(), tmp_path, tmp_path)

    actuator = Actuator(LIMITS, processes, ["raas-0"], spec, status, said.append)  # type: ignore[arg-type]
    actuator.tick()  # nothing is known yet
    status.pool("grow", 2, "raas-0")
    actuator.tick()
    actuator.tick()  # they have not joined: the same advice is not followed twice
    assert processes.started == ["raas-1", "raas-2"]
    status.pool("shrink", 1, "raas-0", "raas-1", "raas-2")
    actuator.tick()
    assert status.drained == ["raas-2"]
    processes.ended.add("raas-1")  # one that dies is replaced where the advice is so
    status.pool("grow", 1, "raas-0")
    actuator.tick()
    assert processes.started[2:] == ["raas-3"]
    assert said == ["2 RaaS more: measured", "1 RaaS fewer: measured", "1 RaaS more: measured"]
