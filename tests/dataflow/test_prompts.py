"""What is known of a prompt, and how willingly it is asked for again."""

from typing import Any

import pytest

from astraflow.core.data import Group, Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import CurriculumConfig, DifficultyConfig, GresoConfig, SolvedConfig
from astraflow.dataflow.ledger_events import Visit
from astraflow.dataflow.prompts import (
    Kind,
    Pool,
    PromptRecord,
    PromptRules,
    greso_probability,
    kind_of,
    pool_of,
    visit_of,
)
from astraflow.dataflow.scripted import trajectory

POOLS = DifficultyConfig()
EASY, HARD, MIXED = Visit(1.0, True), Visit(0.0, True), Visit(0.25, False)


def group(*rewards: float) -> Group:
    task = m.Task(task_id="t", group_id=1, data={})
    rows = tuple(trajectory(task, i, Value(reward), (0,)) for i, reward in enumerate(rewards))
    return Group(group_id=1, task_id="t", prompt_id=0, model_id="model0", trajectories=rows)


def rules_of(**rules: Any) -> PromptRules:
    return PromptRules(CurriculumConfig(**rules))


def after(rules: PromptRules, *visits: Visit, epoch: int = 0) -> PromptRecord:
    record = PromptRecord()
    for visit in visits:
        rules.visited(record, visit, epoch)
    return record


@pytest.mark.parametrize(
    ("visits", "probability"),
    [
        ((), 1.0),
        ((EASY,), 0.5),
        ((HARD,), 0.5),
        ((EASY,) * 2, 0.25),
        ((EASY,) * 4, 0.10),
        ((HARD,) * 2, 0.40),
        ((HARD,) * 9, 0.40),
        ((EASY, EASY, MIXED), 1.0),
        ((EASY, EASY, MIXED, EASY), 0.5),
        ((EASY, EASY, HARD), 0.5),
        ((HARD, HARD, EASY), 0.5),
        ((HARD, EASY, EASY), 0.25),
    ],
)
def test_greso(visits: tuple[Visit, ...], probability: float) -> None:
    rules = rules_of(greso=GresoConfig())
    assert rules.probability(after(rules, *visits), 0) == pytest.approx(probability)


@pytest.mark.parametrize(("z", "kind", "p", "expected"), [(3, Kind.EASY, 0.9, 0.729), (1, Kind.HARD, 0.1, 0.4)])
def test_greso_with_other_numbers(z: int, kind: Kind, p: float, expected: float) -> None:
    assert greso_probability(z, kind, GresoConfig(p=p)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("groups", "visit", "kind"),
    [
        ([group(1, 1)], EASY, Kind.EASY),
        ([group(0, 0)], HARD, Kind.HARD),
        ([group(0.3, 0.3)], HARD, Kind.HARD),
        ([group(1, 0, 0, 0)], MIXED, None),
        ([group(1, 1), group(0, 0)], Visit(0.5, True), Kind.HARD),
        ([group()], None, None),
        ([], None, None),
    ],
)
def test_a_visit_is_made_of_all_groups_of_an_occurrence(
    groups: list[Group], visit: Visit | None, kind: Kind | None
) -> None:
    assert visit_of(groups) == visit
    assert visit is None or kind_of(visit) is kind


def test_solved_after_visits_in_a_row_in_which_every_sample_was_right() -> None:
    rules = rules_of(solved=SolvedConfig(after=2, passes=3))
    assert not rules.is_solved(after(rules, EASY, MIXED, EASY), 0)
    record = after(rules, MIXED, EASY, EASY, epoch=4)
    assert [rules.is_solved(record, epoch) for epoch in (4, 5, 7, 8)] == [True, True, True, False]
    assert rules.probability(record, 7) == 0
    rules.visited(record, EASY, 8)
    assert rules.is_solved(record, 11)


def test_pools_follow_the_smoothed_success_rate() -> None:
    rules = rules_of(difficulty=POOLS)
    record = after(rules, EASY)
    assert (record.success, pool_of(record, POOLS), rules.probability(record, 0)) == (1.0, Pool.EASY, 0.25)
    rules.visited(record, HARD, 0)
    assert (record.success, pool_of(record, POOLS), rules.probability(record, 0)) == (
        0.5,
        Pool.MEDIUM,
        1.0,
    )
    for _ in range(2):
        rules.visited(record, HARD, 0)
    assert (record.success, pool_of(record, POOLS), rules.probability(record, 0)) == (
        0.125,
        Pool.HARD,
        0.5,
    )


def test_chances_are_multiplied() -> None:
    rules = rules_of(greso=GresoConfig(), difficulty=DifficultyConfig())
    assert rules.probability(after(rules, EASY), 0) == 0.5 * 0.25
