"""What pool and service do together: a bad instance among good ones, sessions, advice."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from astraflow.core.data import Failed
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.routing import Affinity
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


def test_results_that_break_the_rules_are_failures_and_tell_no_speed(make_settings: MakeSettings) -> None:
    def endless(task: m.Task, version: int) -> Sequence[Outcome]:
        return [float("nan"), 0.0]

    async def scenario() -> None:
        rehearsal = Rehearsal(make_settings(ledger={"durable": False}))
        async with rehearsal.running():
            await rehearsal.join(ScriptedRaaS("bad", Rehearsal.TOKEN, endless))
            await rehearsal.join(ScriptedRaaS("good", Rehearsal.TOKEN, good))
            trainer = rehearsal.trainer(batch_size=8)
            await trainer.begin()
            for _ in range(6):
                await trainer.train()
            rows = {row["uid"]: row for row in (await rehearsal.client.raas_pool())["instances"]}
            assert (rows["bad"]["health"], rows["bad"]["group_s"]) == ("quarantined", None)
            assert "invalid: " in rows["bad"]["reason"]

    asyncio.run(scenario())


def test_rows_of_a_session_go_where_it_was_while_there_is_work_to_give(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    divide, last, seen = Affinity.divide, {}, set()

    def watched(self: Affinity, sessions: Mapping[int, str | None], shares: Mapping[str, int]) -> dict[str, list[int]]:
        given = divide(self, sessions, shares)
        for key, groups in given.items():
            at_home = sum(last.get(sessions[group]) == key for group in groups)
            wanted = sum(last.get(session) == key for session in sessions.values())
            assert at_home == min(wanted, shares[key])
        last.update({sessions[group]: key for key, groups in given.items() for group in groups})
        seen.update(sessions.values())
        return given

    async def scenario() -> None:
        rows = [{**row, "repository": f"r{i % 2}"} for i, row in enumerate(example_rows(40))]
        settings = make_settings(ledger={"durable": False}, pool={"session_key": "repository"})
        rehearsal = Rehearsal(settings, rows=rows)
        async with rehearsal.running():
            for uid in ("a", "b"):
                await rehearsal.join(ScriptedRaaS(uid, Rehearsal.TOKEN, good, max_concurrency=32))
            trainer = rehearsal.trainer(batch_size=4)
            await trainer.begin()
            for _ in range(6):
                await trainer.train()

    monkeypatch.setattr(Affinity, "divide", watched)
    asyncio.run(scenario())
    assert seen == {"r0", "r1"}


def test_advice_is_told_and_waits_until_it_was_measured(make_settings: MakeSettings) -> None:
    async def scenario() -> None:
        rehearsal = Rehearsal(make_settings(ledger={"durable": False}))
        async with rehearsal.running():
            advice = (await rehearsal.client.raas_pool())["advice"]
            assert advice["action"] == "hold"
            assert "less than 60 s" in advice["reason"]
            assert "raas_advice 0" in rehearsal.service.metrics()

    asyncio.run(scenario())
