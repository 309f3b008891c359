"""Evaluation rounds as state."""

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import Failed, Invalid
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.evaluation import EvalRound, EvalSet
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows, group_result

MakeSettings = Callable[..., DataflowSettings]
EVALS: dict[str, Any] = {
    "eval_workflows": {"w": {"gconfig_overrides": {"n_samples": 2}}},
    "eval_datasets": {"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "w"}},
}


def eval_set(rows: int = 2, n: int = 4, **options: object) -> EvalSet:
    return EvalSet("d", "eval/w", example_rows(rows), n, **options)  # type: ignore[arg-type]


def test_a_round_asks_for_samples_repeats_and_a_greedy_one() -> None:
    r = EvalRound(1, {"model0": 3}, [eval_set(2, 4, repeat=2)], 100)
    tasks = [t.task for t in r.lease("a", "eval/w", 99)]
    assert [(t.n_samples, t.greedy) for t in tasks] == [(4, False), (4, False), (1, True)] * 2
    assert [t.group_id for t in tasks] == list(range(100, 106))
    assert len({t.task_id for t in tasks}) == 6
    assert r.pending == 0


def test_tasks_are_leased_by_workflow() -> None:
    sets = [eval_set(1, greedy=False), EvalSet("e", "eval/other", example_rows(1), 1, greedy=False)]
    r = EvalRound(1, {"model0": 0}, sets, 1)
    assert len(r.lease("a", "eval/w", 9)) == 1
    assert r.lease("a", "eval/w", 9) == []
    assert r.next_workflow == "eval/other"


def test_each_task_is_scored_once_and_by_its_owner() -> None:
    r = EvalRound(1, {"model0": 2}, [eval_set(1, 2, greedy=False)], 1)
    (task,) = r.lease("a", "eval/w", 9)
    result = group_result(task.task, [1.0, 0.0], (2, 2))
    assert not r.finish("b", task.task.task_id, result)
    assert r.finish("a", task.task.task_id, result)
    assert not r.finish("a", task.task.task_id, result)
    assert r.finished
    assert r.results(1).datasets["d"].avg_at_k == 50.0
    assert r.results(1).version == 2


def test_tokens_of_another_version_are_sampled_again() -> None:
    r = EvalRound(1, {"model0": 2}, [eval_set(1, 1, greedy=False)], 1)
    (task,) = r.lease("a", "eval/w", 9)
    assert r.finish("a", task.task.task_id, group_result(task.task, [1.0], (2, 3)))
    assert (r.done, r.pending) == (0, 1)
    (again,) = r.lease("a", "eval/w", 9)
    assert r.finish("a", again.task.task_id, group_result(again.task, [1.0], (2, 2)))
    assert r.results(1).overall_avg_at_k == 100.0


@pytest.mark.parametrize(
    ("outcomes", "invalid", "correct"),
    [([1.0, Failed("crash"), Invalid("timeout")], 2, 1), ([1.0], 2, 1), (None, 3, 0)],
)
def test_failed_missing_and_rejected_samples(outcomes: list[object] | None, invalid: int, correct: int) -> None:
    r = EvalRound(1, {"model0": 0}, [eval_set(1, 3, greedy=False)], 1)
    (task,) = r.lease("a", "eval/w", 9)
    result = None if outcomes is None else group_result(task.task, outcomes, (0,))  # type: ignore[arg-type]
    r.finish("a", task.task.task_id, result)
    scores = r.results(1).datasets["d"]
    assert (scores.invalid, scores.correct, scores.sample_count) == (invalid, correct, 3)


def test_scores_are_taken_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch, make_settings: MakeSettings) -> None:
    """The bootstrap of a large dataset holds up nobody."""
    threads: list[int] = []
    results = EvalRound.results

    def watched(self: EvalRound, seed: int) -> m.EvalResults:
        threads.append(threading.get_ident())
        return results(self, seed)

    async def body() -> None:
        async with Rehearsal(make_settings(**EVALS), eval_rows={"held_out": example_rows(2)}).running() as rehearsal:
            await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, _: [1.0] * (task.n_samples or 2)))
            assert (await rehearsal.trainer(4).begin(run_eval=True)).eval_results is not None

    monkeypatch.setattr(EvalRound, "results", watched)
    asyncio.run(asyncio.wait_for(body(), 60))
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_a_greedy_sample_that_fails_is_wrong() -> None:
    r = EvalRound(1, {"model0": 0}, [eval_set(1, 1)], 1)
    for task in r.lease("a", "eval/w", 9):
        r.finish("a", task.task.task_id, group_result(task.task, [Failed("crash") if task.greedy else 1.0], (0,)))
    assert r.results(1).datasets["d"].greedy == 0.0


@given(seed=st.integers(0, 2**32))
def test_a_round_survives_any_order_of_losses(seed: int) -> None:
    chance = random.Random(seed)
    r = EvalRound(1, {"model0": 1}, [eval_set(4, 2)], 1)
    held: dict[str, list[str]] = {"a": [], "b": []}
    tasks = {}
    for _ in range(200):
        owner = chance.choice("ab")
        match chance.randrange(4):
            case 0:
                for task in r.lease(owner, "eval/w", chance.randint(1, 3)):
                    tasks[task.task.task_id] = task
                    held[owner].append(task.task.task_id)
            case 1:
                r.give_back(owner, r.leased(owner))
            case _ if held[owner]:
                task_id = chance.choice(held[owner])
                outcomes = [1.0] * (tasks[task_id].task.n_samples or 1)
                r.finish(owner, task_id, group_result(tasks[task_id].task, outcomes, (1,)))
            case _:
                pass
    for owner in "ab":
        r.give_back(owner, r.leased(owner))
    for task in r.lease("c", "eval/w", 99):
        r.finish("c", task.task.task_id, group_result(task.task, [1.0] * (task.task.n_samples or 1), (1,)))
    results = r.results(1).datasets["d"]
    assert r.done == r.total == 8
    assert (results.correct, results.sample_count, results.greedy) == (8, 8, 100.0)
