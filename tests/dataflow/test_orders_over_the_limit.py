"""Rows of any size that a body takes arrive, however many go at once; what cannot arrive is said, and ends."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from astraflow.core.protocol import http
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings, DatasetConfig
from astraflow.dataflow.rows import load_rows
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows
from astraflow.dataflow.simulation.clock import VirtualLoop
from astraflow.dataflow.simulation.clock import run as run_in_virtual_time
from astraflow.errors import CallerError, DataError

MakeSettings = Callable[..., DataflowSettings]

MIB = 2**20


def play(
    rehearsal_of: Callable[[Callable[[], float]], Rehearsal], scenario: Callable[[Rehearsal], Awaitable[None]]
) -> None:
    async def body() -> None:
        async with rehearsal_of(loop.time).running() as rehearsal:
            await scenario(rehearsal)
            rehearsal.service.books.ledger.validate()

    loop = VirtualLoop()
    run_in_virtual_time(body(), loop)


def wide(task: m.Task, version: int) -> list[float]:
    return [1.0, 0.0]


def test_an_order_of_more_bytes_than_a_body_takes_arrives(
    make_settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    text = "x" * (3 * MIB)
    rows = [{**row, "tests": text} for row in example_rows(30)]

    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, wide, max_concurrency=64))
        trainer = rehearsal.trainer(48)  # 24 groups of 3 MiB
        await trainer.begin()
        assert (await trainer.batch(60.0)).batch.group_id.size == 48
        assert rehearsal.service.books.ledger.counters.lost_leases == 0
        assert [i.health for i in rehearsal.service.pool.all] == ["healthy"]

    play(lambda clock: Rehearsal(make_settings(), rows=rows, clock=clock), scenario)
    assert "did not take" not in caplog.text


def test_evaluation_tasks_of_more_bytes_than_a_body_takes_arrive(make_settings: MakeSettings) -> None:
    text = "x" * (3 * MIB)
    rows = [{**row, "tests": text} for row in example_rows(24)]

    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, wide, max_concurrency=64))
        reply = await rehearsal.trainer(4).begin(run_eval=True)
        assert reply.eval_results is not None
        assert reply.eval_results.datasets["held_out"].sample_count == 48
        assert [i.health for i in rehearsal.service.pool.all] == ["healthy"]

    settings = make_settings(
        eval_datasets={"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "plain"}},
        eval_workflows={"plain": {"workflow_cls": "rlvr"}},
        eval={"mode": "exclusive"},
    )
    play(lambda clock: Rehearsal(settings, eval_rows={"held_out": rows}, clock=clock), scenario)


async def by_answer(request: m.SubmitRequest) -> list[m.Accepted]:
    return [m.Accepted(task_id=t.task_id, accepted=False, reason="no such tool") for t in request.tasks]


async def by_status(request: m.SubmitRequest) -> list[m.Accepted]:
    raise CallerError("no such tool", 413)


@pytest.mark.parametrize("submit", [by_answer, by_status])
def test_a_task_that_is_refused_again_and_again_has_failed_with_what_was_said(
    make_settings: MakeSettings, submit: Callable[[m.SubmitRequest], Coroutine[Any, Any, list[m.Accepted]]]
) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        peer = ScriptedRaaS("r", Rehearsal.TOKEN, wide)
        peer.submit = submit  # type: ignore[assignment]
        await rehearsal.join(peer)
        await rehearsal.trainer(4).begin()
        await asyncio.sleep(600.0)
        error = str(rehearsal.service.error)
        assert "10 samples in a row had no reward" in error
        assert "refused" in error
        assert "no such tool" in error

    play(lambda clock: Rehearsal(make_settings(max_failure_streak=10), clock=clock), scenario)


def test_a_task_that_one_refuses_goes_to_another(make_settings: MakeSettings) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        odd = ScriptedRaaS("odd", Rehearsal.TOKEN, wide)

        async def submit(request: m.SubmitRequest) -> list[m.Accepted]:
            return [m.Accepted(task_id=t.task_id, accepted=False, reason="busy") for t in request.tasks]

        odd.submit = submit  # type: ignore[method-assign]
        await rehearsal.join(odd)
        await rehearsal.join(ScriptedRaaS("good", Rehearsal.TOKEN, wide))
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        for _ in range(5):
            await trainer.train(60.0)
        assert rehearsal.service.books.ledger.counters.dropped.total() == 0

    play(lambda clock: Rehearsal(make_settings(), clock=clock), scenario)


def row_of(size: int) -> list[dict[str, object]]:
    return [example_rows(1)[0], {**example_rows(2)[1], "tests": "x" * size}]


def too_long() -> list[dict[str, object]]:
    return row_of(http.BODY_LIMIT)


def as_long_as_it_may_be() -> list[dict[str, object]]:
    return row_of(http.BODY_LIMIT - 2**17)


def test_a_row_that_fits_into_no_body_is_refused_at_load() -> None:
    config = DatasetConfig.model_validate({"dataset_fn": f"{__name__}:too_long"})
    with pytest.raises(DataError, match=r"row 1 \(task_id 'sum-1'\) has \d+ bytes on the wire, expected at most \d+"):
        load_rows(config, split="train", seed=1, tokenizer=None)


def test_the_longest_row_that_is_loaded_arrives(make_settings: MakeSettings) -> None:
    config = DatasetConfig.model_validate({"dataset_fn": f"{__name__}:as_long_as_it_may_be"})
    rows = load_rows(config, split="train", seed=1, tokenizer=None)

    async def scenario(rehearsal: Rehearsal) -> None:
        await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, wide, max_concurrency=1))
        trainer = rehearsal.trainer(2)
        await trainer.begin()
        assert (await trainer.batch(60.0)).batch.group_id.size == 2

    play(lambda clock: Rehearsal(make_settings(), rows=rows[1:], clock=clock), scenario)
