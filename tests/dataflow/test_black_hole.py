"""A RaaS that accepts all work and returns none: others get it, and it gets no more for a while."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows
from astraflow.dataflow.simulation.clock import VirtualLoop
from astraflow.dataflow.simulation.clock import run as run_in_virtual_time

MakeSettings = Callable[..., DataflowSettings]
EVALS = {
    "eval_workflows": {"w": {"gconfig_overrides": {"n_samples": 2}}},
    "eval_datasets": {"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "w"}},
}


def raas(uid: str, hold: bool) -> ScriptedRaaS:
    return ScriptedRaaS(uid, Rehearsal.TOKEN, lambda task, version: [1.0, 0.0][: task.n_samples or 2], hold=hold)


def play(settings: DataflowSettings, scenario: Callable[[Rehearsal], Awaitable[None]], evals: int = 0) -> None:
    async def body() -> None:
        eval_rows = {"held_out": example_rows(evals)} if evals else None
        async with Rehearsal(settings, eval_rows=eval_rows, clock=loop.time).running() as rehearsal:
            await scenario(rehearsal)

    loop = VirtualLoop()
    run_in_virtual_time(body(), loop)


async def health(rehearsal: Rehearsal, uid: str) -> tuple[str, str]:
    (row,) = (row for row in (await rehearsal.client.raas_pool())["instances"] if row["uid"] == uid)
    return row["health"], row["reason"]


def test_leases_that_end_without_a_result_count_as_failures(make_settings: MakeSettings) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        hole = raas("hole", hold=True)
        await rehearsal.join(hole)
        await rehearsal.join(raas("good", hold=False))
        trainer = rehearsal.trainer(batch_size=16)
        await trainer.begin()
        await asyncio.sleep(31.0)
        assert await health(rehearsal, "hole") == (
            "quarantined",
            "3 failures in a row, no work for 60 s: no result within 30 s",
        )
        given = len(hole.submitted)
        for _ in range(5):
            await trainer.train()
        assert len(hole.submitted) == given > 0

    play(make_settings(episode_timeout_s=10.0), scenario)


@pytest.mark.parametrize("mode", ["exclusive", "concurrent"])
def test_an_evaluation_goes_on_with_others(make_settings: MakeSettings, mode: str) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        hole = raas("hole", hold=True)
        await rehearsal.join(hole)
        trainer = rehearsal.trainer(batch_size=4)
        scores = asyncio.create_task(trainer.begin(run_eval=True))
        await asyncio.sleep(5.0)
        await rehearsal.join(raas("good", hold=False))
        results = (await scores).eval_results
        assert results is not None
        assert (results.datasets["held_out"].total, results.datasets["held_out"].invalid) == (7, 0)
        assert asyncio.get_running_loop().time() < 50.0
        assert hole.submitted

    play(make_settings(episode_timeout_s=10.0, eval={"mode": mode}, **EVALS), scenario, evals=7)


def test_half_of_a_rounds_time_is_the_longest_lease(make_settings: MakeSettings) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.join(raas("hole", hold=True))
        trainer = rehearsal.trainer(batch_size=4)
        scores = asyncio.create_task(trainer.begin(run_eval=True))
        await asyncio.sleep(1.0)
        await rehearsal.join(raas("good", hold=False))
        assert (await scores).eval_results is not None
        assert 20.0 <= asyncio.get_running_loop().time() < 40.0

    play(make_settings(episode_timeout_s=100.0, eval={"timeout_s": 40.0}, **EVALS), scenario, evals=3)
