"""What is kept by a name that comes from outside has an end, however many names come in a run."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from astraflow.core.data import Failed, Value
from astraflow.core.protocol import messages as m
from astraflow.core.protocol.messages import RegisterRaaSRequest
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.raas_pool import FAILURES, Health, RaaSPool
from astraflow.dataflow.scripted import Outcome, Rehearsal, ScriptedRaaS, group_result
from astraflow.dataflow.simulation.clock import VirtualLoop
from astraflow.dataflow.simulation.clock import run as run_in_virtual_time
from astraflow.dataflow.statistics import RolloutStatistics

MakeSettings = Callable[..., DataflowSettings]

MANY = 1500
A_FEW = 100


def play(settings: DataflowSettings, scenario: Callable[[Rehearsal], Awaitable[None]]) -> None:
    async def body() -> None:
        async with Rehearsal(settings, clock=loop.time).running() as rehearsal:
            await scenario(rehearsal)
            rehearsal.service.pool.validate()

    loop = VirtualLoop()
    run_in_virtual_time(body(), loop)


def sizes(owner: object, depth: int = 3) -> dict[str, int]:
    """How many things each collection below an object holds, by path."""
    found: dict[str, int] = {}
    for name, value in getattr(owner, "__dict__", {}).items():
        if isinstance(value, dict | list | set | tuple):
            found[name] = len(value)
        elif depth and type(value).__module__.startswith("astraflow."):
            found |= {f"{name}.{below}": n for below, n in sizes(value, depth - 1).items()}
    return found


def test_registrations_of_ever_new_names_that_die_are_forgotten() -> None:
    pool = RaaSPool(["model0"])
    for number in range(MANY):
        request = RegisterRaaSRequest(uid=f"spot-{number}", raas_url=f"http://h{number}")
        key = pool.register(request, float(number)).instance.key
        pool.prepared(key, float(number))
        for _ in range(FAILURES):
            pool.failed(key, "gone")
    pool.validate()
    assert pool.all[-1].uid == f"spot-{MANY - 1}"
    assert len(pool.all) <= A_FEW
    assert max(sizes(pool).values()) <= 1000, sizes(pool)


def test_registrations_of_ever_new_names_that_leave_or_are_replaced_are_forgotten() -> None:
    pool = RaaSPool(["model0"])
    for number in range(MANY):
        key = pool.register(RegisterRaaSRequest(uid="r", raas_url=f"http://h{number}"), float(number)).instance.key
        other = pool.register(RegisterRaaSRequest(uid=f"s{number}", raas_url="http://s"), float(number)).instance.key
        pool.prepared(key, float(number))
        pool.drain(f"s{number}", float(number))
        pool.remove(other)
    pool.validate()
    assert max(sizes(pool).values()) <= 1000, sizes(pool)


def test_what_the_service_tells_does_not_grow_with_the_dead(make_settings: MakeSettings) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.join(ScriptedRaaS("stays", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0]))
        for number in range(150):
            peer = ScriptedRaaS(f"spot-{number}", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0])
            await rehearsal.join(peer)
            await asyncio.sleep(0.1)
            await peer.die()
        await asyncio.sleep(60.0)
        pool = await rehearsal.client.raas_pool()
        assert pool["size"] == 1
        assert "spot-149" in {row["uid"] for row in pool["instances"]}
        assert len(pool["instances"]) <= A_FEW
        assert len(json.dumps(pool)) < 20_000
        assert len(rehearsal.service.board.lacking("model0")) < 10_000

    play(make_settings(pool={"heartbeat_s": 0.5, "missed_heartbeats": 1}), scenario)


def test_the_newest_dead_one_is_shown_and_may_come_back() -> None:
    pool = RaaSPool(["model0"])
    request = RegisterRaaSRequest(uid="r", raas_url="http://h", capabilities={"incarnation": "1"})
    key = pool.register(request, 0.0).instance.key
    for _ in range(FAILURES):
        pool.failed(key, "gone")
    assert [(i.uid, i.health) for i in pool.all] == [("r", Health.DEAD)]
    assert pool.register(request, 1.0).new
    pool.validate()


def test_reasons_and_parts_of_ever_new_names_are_few_metrics() -> None:
    statistics = RolloutStatistics(lambda: 0.0)
    task = m.Task(task_id="t#1", group_id=1, data={})
    for number in range(MANY):
        outcomes: Sequence[Outcome] = [Failed(f"code {number}"), Value(1.0, parts={f"part{number}": 1.0})]
        statistics.finished(group_result(task, outcomes), 1.0)
    taken = statistics.take()
    assert len(taken) <= 2 * A_FEW
    assert sum(n for name, n in taken.items() if name.startswith("rollout/lost/")) == MANY
