"""What pool and service do together: a bad instance among good ones, sessions, advice."""

import asyncio
from collections.abc import Callable, Sequence

from astraflow.core.data import Failed
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Outcome, Rehearsal, ScriptedRaaS, example_rows

MakeSettings = Callable[..., DataflowSettings]


def good(task: m.Task, version: int) -> Sequence[Outcome]:
    return [1.0, 0.0]


def bad(task: m.Task, version: int) -> Sequence[Outcome]:
    return [Failed("engine", "no memory"), Failed("engine", "no memory")]


def test_a_bad_instance_is_in_quarantine_and_the_run_goes_on(make_settings: MakeSettings) -> None:
    async def scenario() -> None:
        rehearsal = Rehearsal(make_settings(ledger={"durable": False}))
        async with rehearsal.running():
            await rehearsal.join(ScriptedRaaS("bad", Rehearsal.TOKEN, bad))
            await rehearsal.join(ScriptedRaaS("good", Rehearsal.TOKEN, good))
            trainer = rehearsal.trainer(batch_size=8)
            await trainer.begin()
            for _ in range(6):
                await trainer.train()
            rows = {row["uid"]: row for row in (await rehearsal.client.raas_pool())["instances"]}
            assert rows["bad"]["health"] == "quarantined"
            assert "3 failures in a row" in rows["bad"]["reason"]
            assert "engine: no memory" in rows["bad"]["reason"]
            assert rows["good"]["health"] == "healthy"
            assert rows["good"]["group_s"] is not None
            assert "raas_quarantined 1" in rehearsal.service.metrics()

    asyncio.run(scenario())


def test_rows_of_a_session_go_to_one_instance(make_settings: MakeSettings) -> None:
    async def scenario() -> None:
        rows = [{**row, "repository": f"r{i % 2}"} for i, row in enumerate(example_rows(40))]
        settings = make_settings(ledger={"durable": False}, pool={"session_key": "repository"})
        rehearsal = Rehearsal(settings, rows=rows)
        raas = {uid: ScriptedRaaS(uid, Rehearsal.TOKEN, good, max_concurrency=32) for uid in ("a", "b")}
        sessions: dict[str, set[str]] = {uid: set() for uid in raas}
        async with rehearsal.running():
            for peer in raas.values():
                await rehearsal.join(peer)
            trainer = rehearsal.trainer(batch_size=4)
            await trainer.begin()
            await trainer.train()
            for uid, peer in raas.items():
                right = peer.submit

                async def submit(request: m.SubmitRequest, uid: str = uid, right: object = right) -> object:
                    sessions[uid].update(task.data["repository"] for task in request.tasks)
                    return await right(request)  # type: ignore[operator]

                peer.submit = submit  # type: ignore[method-assign, assignment]
            for _ in range(5):
                await trainer.train()
        # groups come in twos; each instance kept what it had first
        assert sum(len(found) for found in sessions.values()) <= 3

    asyncio.run(scenario())


def test_advice_is_told_and_waits_until_it_was_measured(make_settings: MakeSettings) -> None:
    async def scenario() -> None:
        rehearsal = Rehearsal(make_settings(ledger={"durable": False}))
        async with rehearsal.running():
            advice = (await rehearsal.client.raas_pool())["advice"]
            assert advice["action"] == "hold"
            assert "less than 60 s" in advice["reason"]
            assert "raas_advice 0" in rehearsal.service.metrics()

    asyncio.run(scenario())
