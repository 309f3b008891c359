"""Which row is asked for next: weights, seeded orders, prompts by their records, restored."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from astraflow.core.data import decode, encode
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import (
    CurriculumConfig,
    DataflowConfig,
    DataflowSettings,
    DifficultyConfig,
    GresoConfig,
    SolvedConfig,
)
from astraflow.dataflow.curriculum import Curriculum, CurriculumState, DatasetCursor, make_curriculum
from astraflow.dataflow.ledger_events import Visit
from astraflow.dataflow.prompts import PromptRules
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, ScriptedTrainer, example_rows
from astraflow.dataflow.store import LedgerStore
from astraflow.errors import DataError

EASY, HARD, MIXED = Visit(1.0, True), Visit(0.0, True), Visit(0.5, False)


def drawn(curriculum: Curriculum, n: int) -> list[tuple[int, int]]:
    return [curriculum.next() for _ in range(n)]


def test_each_epoch_is_a_seeded_permutation() -> None:
    cursor, again, other = DatasetCursor(5, 1), DatasetCursor(5, 1), DatasetCursor(5, 2)
    rows = [cursor.next() for _ in range(15)]
    assert rows == [again.next() for _ in range(15)] != [other.next() for _ in range(15)]
    epochs = [[prompt for prompt, epoch in rows if epoch == e] for e in range(3)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert (cursor.epoch, cursor.position) == (2, 5)
    again.seek(7)
    assert again.next() == rows[7]
    again.after(*rows[9])
    assert again.next() == rows[10]


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="no rows"):
        Curriculum({"a": 3, "b": 0}, 1)


def test_one_dataset_without_rules_is_its_cursor() -> None:
    cursor = DatasetCursor(7, 3)
    assert drawn(Curriculum({"a": 7}, 3), 30) == [cursor.next() for _ in range(30)]


@pytest.mark.parametrize("weights", [(1.0, 1.0, 2.0), (0.6, 0.3, 0.1), (1.0, 7.0, 3.5)])
def test_datasets_get_their_shares_at_every_moment(weights: tuple[float, ...]) -> None:
    sizes = {"a": 10, "b": 3, "c": 50}
    curriculum = Curriculum(sizes, 1, weights=weights)
    asked: Counter[int] = Counter()
    for n in range(1, 400):
        prompt_id, _ = curriculum.next()
        asked[curriculum.dataset(prompt_id)] += 1
        assert all(abs(asked[i] - n * weight / sum(weights)) < 1.0 for i, weight in enumerate(weights))
    assert curriculum.statistics() == {f"curriculum/issued/{name}": float(asked[i]) for i, name in enumerate(sizes)}


def test_each_dataset_of_a_mixture_goes_through_all_its_rows() -> None:
    curriculum = Curriculum({"a": 4, "b": 2}, 1, weights=(2, 1))
    rows = drawn(curriculum, 12)
    for epoch in (0, 1):
        assert sorted(prompt for prompt, e in rows if e == epoch) == list(range(6))


def test_a_prompt_is_asked_for_as_often_as_its_chance_says() -> None:
    curriculum = Curriculum({"a": 40}, 1, rules=CurriculumConfig(greso=GresoConfig()))
    easy, hard = range(10), range(10, 20)
    for prompt in (*easy, *hard):
        for _ in range(4):
            curriculum.visited(prompt, 0, EASY if prompt in easy else HARD)
    asked = Counter(prompt for prompt, _ in drawn(curriculum, 20_000))
    passes = asked[39]
    assert sum(asked[p] for p in easy) / (10 * passes) == pytest.approx(0.1, abs=0.02)
    assert sum(asked[p] for p in hard) / (10 * passes) == pytest.approx(0.4, abs=0.02)
    assert all(passes - 1 <= asked[p] <= passes + 1 for p in range(20, 40))


def test_solved_prompts_are_left_out_for_their_passes() -> None:
    curriculum = Curriculum({"a": 4}, 1, rules=CurriculumConfig(solved=SolvedConfig(after=2, passes=2)))
    for _ in range(2):
        curriculum.visited(1, 0, EASY)
    rows = drawn(curriculum, 14)
    assert [epoch for prompt, epoch in rows if prompt == 1] == [3]
    assert curriculum.statistics()["curriculum/solved"] == 0  # as of the pass that it is at


def test_solved_for_good_and_when_all_are_solved_none_is_left_out() -> None:
    curriculum = Curriculum({"a": 3}, 1, rules=CurriculumConfig(solved=SolvedConfig(after=1)))
    curriculum.visited(0, 0, EASY)
    assert {prompt for prompt, _ in drawn(curriculum, 20)} == {1, 2}
    curriculum.visited(1, 5, EASY)
    curriculum.visited(2, 5, EASY)
    assert curriculum.statistics()["curriculum/solved"] == 3
    left_out = curriculum.left_out
    assert {prompt for prompt, _ in drawn(curriculum, 6)} == {0, 1, 2}
    assert curriculum.left_out == left_out
    curriculum.visited(2, 6, MIXED)
    assert {prompt for prompt, _ in drawn(curriculum, 6)} == {2}


def cost(curriculum: Curriculum, n: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Probabilities that are looked up in Python, and cursors' steps, for the next n prompts."""
    steps = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            return function(*arguments)

        return count

    monkeypatch.setattr(PromptRules, "probability", counted(PromptRules.probability))
    monkeypatch.setattr(DatasetCursor, "next", counted(DatasetCursor.next))
    drawn(curriculum, n)
    return steps


@pytest.mark.parametrize("left", [0, 1])
def test_the_next_prompt_takes_no_walk_over_a_dataset_of_solved_ones(
    left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    curriculum = Curriculum({"a": 5000}, 1, rules=CurriculumConfig(solved=SolvedConfig(after=1)))
    for prompt in range(5000 - left):
        curriculum.visited(prompt, 0, EASY)
    assert cost(curriculum, 10, monkeypatch) <= 20


def test_a_visit_ends_that_nothing_is_asked_for() -> None:
    rules = CurriculumConfig(solved=SolvedConfig(after=1, passes=3))
    curriculum = Curriculum({"a": 100}, 1, rules=rules)
    for prompt in range(100):
        curriculum.visited(prompt, 0, EASY)
    assert len({prompt for prompt, _ in drawn(curriculum, 50)}) == 50  # all are solved: none is left out
    curriculum.visited(7, 0, MIXED)
    assert {prompt for prompt, _ in drawn(curriculum, 3)} == {7}


def test_pools_are_asked_for_at_their_rates() -> None:
    rules = CurriculumConfig(difficulty=DifficultyConfig(easy_rate=0.2, hard_rate=0.6))
    curriculum = Curriculum({"a": 30}, 1, rules=rules)
    for prompt in range(20):
        curriculum.visited(prompt, 0, EASY if prompt < 10 else HARD)
    asked = Counter(prompt for prompt, _ in drawn(curriculum, 20_000))
    assert sum(asked[p] for p in range(10)) / (10 * asked[29]) == pytest.approx(0.2, abs=0.02)
    assert sum(asked[p] for p in range(10, 20)) / (10 * asked[29]) == pytest.approx(0.6, abs=0.02)
    stats = curriculum.statistics()
    assert [stats[f"curriculum/{pool}"] for pool in ("easy", "medium", "hard")] == [10, 0, 10]


def test_it_is_restored_from_a_snapshot_and_from_its_log() -> None:
    rules = CurriculumConfig(greso=GresoConfig(), solved=SolvedConfig(), difficulty=DifficultyConfig())

    def fresh() -> Curriculum:
        return Curriculum(
            {"a": 5, "b": 9},
            4,
            weights=(1, 3),
            rules=rules,
        )

    live, log = fresh(), fresh()
    for number in range(300):
        prompt_id, epoch = live.next()
        log.issued(prompt_id, epoch)
        visit = [EASY, HARD, MIXED, None][number * 7 % 4]
        live.visited(prompt_id, epoch, visit)
        log.visited(prompt_id, epoch, visit)
        if number % 50 == 49:
            kept = fresh()
            kept.restore(decode(encode(live.snapshot()), CurriculumState))
            assert drawn(kept, 40) == drawn(log, 40)
            log.restore(decode(encode(live.snapshot()), CurriculumState))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"greso": {"p": 1.5}}, "less than or equal to 1"),
        ({"difficulty": {"easy_from": 0.2, "hard_to": 0.2}}, "hard_to must be less than easy_from"),
        ({"grezo": {}}, "grezo"),
        ({"solved": {"after": 0}}, "greater than or equal to 1"),
    ],
)
def test_wrong_rules_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CurriculumConfig.model_validate_json(json.dumps(given), strict=True)


def test_a_configuration_becomes_a_curriculum() -> None:
    config = DataflowConfig.model_validate(
        {
            "rollout_dataset": {"dataset_fn": "a.b:c", "weight": 3},
            "mixture": {"more": {"dataset_fn": "a.b:d"}},
            "curriculum": {"greso": {"easy_floor": 0}, "solved": {}, "difficulty": {}},
        }
    )
    curriculum = make_curriculum(config, {"rollout_dataset": 8, "more": 8}, 1)
    assert Counter(curriculum.dataset(p) for p, _ in drawn(curriculum, 100)) == {0: 75, 1: 25}
    with pytest.raises(ValidationError, match="choose another"):
        DataflowConfig.model_validate(
            {"rollout_dataset": {"dataset_fn": "a.b:c"}, "mixture": {"rollout_dataset": {"dataset_fn": "a.b:c"}}}
        )


def test_a_run_of_a_mixture_leaves_solved_prompts_out_and_goes_on_after_a_restart(
    make_settings: Callable[..., DataflowSettings], tmp_path: Path
) -> None:
    settings = make_settings(
        buffer={"filter_function": None},
        mixture={"more": {"dataset_fn": "a.b:c"}},
        curriculum={"solved": {"after": 1}},
    )
    rows = {"rollout_dataset": example_rows(6), "more": example_rows(3)}

    def solves(task: m.Task, version: int) -> list[float]:
        return [1.0, 1.0] if str(task.data["task_id"]) in ("sum-0", "sum-1") else [0.0, 1.0]

    async def part(steps: int, version: int) -> list[int]:
        rehearsal = Rehearsal(settings, rows=rows, store=LedgerStore(tmp_path / "ledger"))
        async with rehearsal.running() as dataflow:
            await dataflow.join(ScriptedRaaS("a", Rehearsal.TOKEN, solves, max_concurrency=2))
            trainer = ScriptedTrainer(dataflow.client, batch_size=4)
            if version == 0:
                await trainer.begin()
            trainer.version = trainer.step = version
            trained = []
            for _ in range(steps):
                reply = await trainer.train()
                trained += reply.batch.prompt_id[::2].tolist()
            assert reply.buffer_stats["curriculum/issued/more"] == pytest.approx(
                reply.buffer_stats["curriculum/issued/rollout_dataset"], abs=1
            )
            return trained

    async def whole() -> None:
        trained = [*await part(12, 0), *await part(12, 12)]
        late = trained[len(trained) // 2 :]
        assert {0, 1, 6, 7} <= set(trained)
        assert not {0, 1, 6, 7} & set(late)  # prompts 0 and 1 of both datasets
        assert set(late) == {2, 3, 4, 5, 8}

    asyncio.run(asyncio.wait_for(whole(), 60))
