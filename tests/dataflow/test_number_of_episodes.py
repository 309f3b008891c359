"""A group has as many episodes as samples were asked for: another number is a failure, counted, and ends a run."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from astraflow.core.data import Failed
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows
from astraflow.dataflow.simulation.clock import VirtualLoop
from astraflow.dataflow.simulation.clock import run as run_in_virtual_time

MakeSettings = Callable[..., DataflowSettings]


def play(settings: DataflowSettings, scenario: Callable[[Rehearsal], Awaitable[None]], **options: object) -> None:
    async def body() -> None:
        async with Rehearsal(settings, clock=loop.time, **options).running() as rehearsal:  # type: ignore[arg-type]
            await scenario(rehearsal)
            rehearsal.service.books.ledger.validate()

    loop = VirtualLoop()
    run_in_virtual_time(body(), loop)


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_a_raas_that_returns_another_number_of_episodes_ends_the_run_with_that_reason(
    make_settings: MakeSettings, count: int
) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        peer = ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [float(i % 2) for i in range(count)])
        await rehearsal.join(peer)
        await rehearsal.trainer(4).begin()
        await asyncio.sleep(60.0)
        error = str(rehearsal.service.error)
        assert "20 samples in a row had no reward" in error
        assert f"has {count} episodes, {count} of them with a reward; expected 2" in error
        assert rehearsal.service.serving.ready("model0") == 0

    play(make_settings(max_failure_streak=20), scenario)


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_it_is_in_quarantine_among_others_and_no_row_of_it_is_trained(make_settings: MakeSettings, count: int) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        odd = ScriptedRaaS("odd", Rehearsal.TOKEN, lambda task, version: [float(i % 2) for i in range(count)])
        await rehearsal.join(odd)
        await rehearsal.join(ScriptedRaaS("good", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0]))
        trainer = rehearsal.trainer(8)
        await trainer.begin()
        for _ in range(6):
            assert len((await trainer.train()).batch.lengths) == 8
        health = {i.uid: str(i.health) for i in rehearsal.service.pool.all}
        assert health == {"odd": "quarantined", "good": "healthy"}

    play(make_settings(), scenario)


def test_samples_beyond_those_asked_for_may_be_there_without_a_reward(make_settings: MakeSettings) -> None:
    """Of over-sampling, and of stragglers that were replaced."""

    async def scenario(rehearsal: Rehearsal) -> None:
        cut = [Failed("cut"), Failed("straggler")]
        await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [1.0, *cut, 0.0]))
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        assert len((await trainer.train()).batch.lengths) == 4
        assert rehearsal.service.books.ledger.counters.dropped.total() == 0

    play(make_settings(), scenario)


def test_a_group_whose_every_sample_failed_may_say_so_once(make_settings: MakeSettings) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        fails = iter([True])

        def script(task: m.Task, version: int) -> list[float | Failed]:
            return [Failed("engine", "no memory")] if next(fails, False) else [1.0, 0.0]

        await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, script))
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await trainer.train()
        dropped = rehearsal.service.books.ledger.counters.dropped
        assert {reason.value: n for reason, n in dropped.items() if n} == {"failed": 1}

    play(make_settings(), scenario)


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_an_evaluation_takes_no_more_samples_than_it_asked_for(make_settings: MakeSettings, count: int) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        def script(task: m.Task, version: int) -> list[float]:
            return [1.0] * count if task.task_id.startswith("eval") else [1.0, 0.0]

        await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, script))
        reply = await rehearsal.trainer(4).begin(run_eval=True)
        assert reply.eval_results is not None
        scored = reply.eval_results.datasets["held_out"]
        assert (scored.sample_count, scored.invalid, scored.correct) == (6, 6, 0)

    settings = make_settings(
        eval_datasets={"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "plain"}},
        eval_workflows={"plain": {"workflow_cls": "rlvr"}},
    )
    play(settings, scenario, eval_rows={"held_out": example_rows(3)})
