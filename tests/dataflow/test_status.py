"""What the service tells people."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from astraflow.core.protocol import in_process
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS

MakeSettings = Callable[..., DataflowSettings]
HEADERS = {"Authorization": f"Bearer {Rehearsal.TOKEN}"}


def right(task: m.Task, version: int) -> list[float]:
    return [1.0, 0.0]


def raas(uid: str, **options: Any) -> ScriptedRaaS:
    return ScriptedRaaS(uid, Rehearsal.TOKEN, right, **options)


def run(settings: DataflowSettings, test: Callable[[Rehearsal], Awaitable[None]]) -> None:
    async def body() -> None:
        async with Rehearsal(settings).running() as rehearsal:
            await test(rehearsal)

    asyncio.run(asyncio.wait_for(body(), 60))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_status_says_who_waits_on_what(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        asking = asyncio.create_task(trainer.batch())
        await until(lambda: bool(rehearsal.service.waits.describe()))
        status = await rehearsal.client.status()
        assert status["status"] == "starting"
        (waiting,) = status["waiting"]
        assert waiting["who"] == "trainer of model0 at version 0"
        assert waiting["on"] == (
            "2 more groups (0 of 2 ready); no RaaS serves the current verified version; RaaS: none has registered"
        )
        await rehearsal.join(raas("r"))
        await asking
        status = await rehearsal.client.status()
        assert (status["status"], status["waiting"]) == ("ready", [])
        live = status["live"]
        assert (live["step"], live["version"], live["staleness_bound"], live["reward"]) == (0, 0, 2, 0.5)
        assert live["issued"] == live["in_flight"] == 6
        rows = status["raas_pool"]["instances"]
        assert [(row["uid"], row["version"], row["verified"], row["health"]) for row in rows] == [
            ("r", 0, True, "healthy")
        ]

    run(make_settings(), test)


def test_metrics_are_prometheus_text(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        async with httpx.AsyncClient(transport=in_process(rehearsal.app), base_url="http://x") as client:
            text = (await client.get("/metrics", headers=HEADERS)).text
        assert "astraflow_dropped_stale 0\n" in text
        assert "astraflow_step_model0 0\n" in text

    run(make_settings(), test)
