"""What a finished occurrence becomes, in order and with counted reasons."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from astraflow.core.data import Failed, Group, Invalid, Manifest, TensorEntry, Trajectory, Value
from astraflow.core.data.trajectory import GroupResult
from astraflow.core.protocol import messages as m
from astraflow.dataflow.curation import Curator, FailureStreak, Occurrence, groups_of, word
from astraflow.dataflow.filters import FilterRules, make_filters
from astraflow.dataflow.ledger import DropReason
from astraflow.dataflow.policies import Policies, Published
from astraflow.dataflow.scripted import Outcome, group_result, trajectory
from astraflow.errors import DataError

OCCURRENCE = Occurrence(5, 3, "sum-3")
TASK = m.Task(task_id="sum-3#5", group_id=5, data={})


def curator(
    n: int, *names: str, shuffle_seed: int | None = None, waits: Callable[[Group], bool] = lambda g: False, **rules: Any
) -> Curator:
    policies = Policies({"model0": n})
    for number in (0, 1):
        policies.replay_announced("model0", number, number, None)
    filters = make_filters(names or ("filter_zero_adv",), policies, FilterRules(**rules), waits)
    return Curator(policies, filters, shuffle_seed=shuffle_seed)


def result(*outcomes: Outcome, versions: tuple[int, ...] = (0, 1)) -> GroupResult:
    return group_result(TASK, outcomes, versions)


@pytest.mark.parametrize(
    ("outcomes", "drop"),
    [
        ([1, 0, 0, 1], None),
        ([1, 1, 1, 1], DropReason.ZERO_ADVANTAGE),
        ([0, 0, 0, 0], DropReason.ZERO_ADVANTAGE),
        ([0.1, 0.1 + 1e-12, 0.1, 0.1], None),
        ([1, 0, Failed("crash"), Invalid("timeout")], None),
        ([1, 1, Failed("crash"), Invalid("timeout")], DropReason.ZERO_ADVANTAGE),
        ([1, Failed("crash"), Failed("crash"), Invalid("timeout")], DropReason.INVALID),
        ([Invalid("gold")] * 4, DropReason.INVALID),
        ([Failed("crash")] * 3 + [Invalid("gold")], DropReason.INVALID),
    ],
)
def test_groups_of_four(outcomes: list[Outcome], drop: DropReason | None) -> None:
    (outcome,) = curator(4).close(OCCURRENCE, result(*outcomes))
    assert outcome.drop is drop


def test_all_failed_gives_no_group() -> None:
    assert curator(2).close(OCCURRENCE, result(Failed("crash"), Failed("engine"))) == []


@pytest.mark.parametrize(
    ("n", "rules", "outcomes", "drop"),
    [
        (1, {}, [1], None),
        (1, {}, [Invalid("gold")], DropReason.INVALID),
        (4, {"min_group_size": 3}, [1, 0, Failed("x"), Failed("x")], DropReason.INVALID),
        (4, {"min_group_size": 3}, [1, 0, 0, Failed("x")], None),
        (4, {"min_group_size": 1}, [1, Failed("x"), Failed("x"), Failed("x")], DropReason.ZERO_ADVANTAGE),
    ],
)
def test_sizes(n: int, rules: dict[str, Any], outcomes: list[Outcome], drop: object) -> None:
    (outcome,) = curator(n, **rules).close(OCCURRENCE, result(*outcomes))
    assert outcome.drop is drop


def test_equal_rewards_stay_where_the_filter_is_not_asked_for() -> None:
    (outcome,) = curator(4, "filter_invalid").close(OCCURRENCE, result(1, 1, 1, 1))
    assert outcome.drop is None


def test_only_samples_with_a_reward_stay_and_the_others_are_counted() -> None:
    (group,) = groups_of(
        OCCURRENCE, result(1, Failed("engine", "boom"), Invalid("timeout"), Invalid("timeout: 15 s"), 0), ["model0"]
    )
    assert [t.sample_id for t in group.trajectories] == [5 << 16, (5 << 16) | 4]
    assert group.lost == {"engine": 1, "timeout": 2}
    assert (group.prompt_id, group.task_id, group.reward_mean) == (3, "sum-3", 0.5)


def test_branches_of_a_sample_count_once() -> None:
    branches = tuple(trajectory(TASK, 0, Value(1.0), (0,)) for _ in range(3))
    (outcome,) = curator(2).close(OCCURRENCE, group_result(TASK, [branches, 0.0]))
    assert len(outcome.group.trajectories) == 4
    assert outcome.group.rewards.tolist() == [1.0, 0.0]
    assert outcome.group.reward_std == pytest.approx(0.7071068)


def test_a_sample_is_lost_only_if_nothing_of_it_stays() -> None:
    pair = (trajectory(TASK, 0, Value(1.0), (0,)), trajectory(TASK, 0, Value(1.0), ()))
    (group,) = groups_of(OCCURRENCE, group_result(TASK, [pair, (trajectory(TASK, 1, Value(0.0), ()),)]), ["model0"])
    assert group.lost == {"empty": 1}
    assert len(group.trajectories) == 1


def test_an_unknown_version_is_of_another_lineage() -> None:
    (outcome,) = curator(2).close(OCCURRENCE, result(1, 0, versions=(0, 7)))
    assert outcome.drop is DropReason.LINEAGE


def test_each_policy_and_role_is_a_group() -> None:
    def both(index: int, reward: float) -> tuple[Trajectory, ...]:
        return tuple(trajectory(TASK, index, Value(reward), (0,), model_id=model) for model in ("a", "b"))

    groups = groups_of(OCCURRENCE, group_result(TASK, [both(0, 1), both(1, 0), Failed("cut")]), ["a", "b"])
    assert [(g.model_id, len(g.trajectories), g.lost) for g in groups] == [("a", 2, {"cut": 1}), ("b", 2, {"cut": 1})]


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        (m.Task(task_id="x", group_id=6, data={}), "model0", "group 6 in the result of group 5"),
        (TASK, "other", "model 'other' is not one of model0"),
    ],
)
def test_somebody_elses_trajectory_is_refused(task: m.Task, model: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        groups_of(OCCURRENCE, group_result(task, [1.0], model_id=model), ["model0"])


@pytest.mark.parametrize("reward", ["nan", "inf", "1e+300"])
def test_a_reward_that_is_no_float32_number_is_refused(reward: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"reward is {reward}")):
        groups_of(OCCURRENCE, result(float(reward)), ["model0"])


def test_shuffled_rewards_are_a_seeded_permutation_inside_the_group() -> None:
    outcomes: list[Outcome] = [1.0, 0.0, 0.25, 0.5, 0.75, Invalid("gold")]
    runs = [curator(6, shuffle_seed=seed).close(OCCURRENCE, result(*outcomes))[0].group for seed in (1, 1, 2)]
    assert sorted(runs[0].rewards) == sorted(o for o in outcomes if isinstance(o, float))
    assert runs[0].rewards.tolist() == runs[1].rewards.tolist() != runs[2].rewards.tolist()
    assert runs[0].rewards.tolist() != [1.0, 0.0, 0.25, 0.5, 0.75]
    assert [t.sample_id for t in runs[0].trajectories] == [(5 << 16) | i for i in range(5)]


def test_shuffling_keeps_the_branches_of_a_sample_together() -> None:
    branches = tuple(trajectory(TASK, 0, Value(1.0), (0,)) for _ in range(2))
    for seed in range(8):
        (o,) = curator(3, shuffle_seed=seed).close(OCCURRENCE, group_result(TASK, [branches, 0.0, 0.5]))
        assert o.group.trajectories[0].reward == o.group.trajectories[1].reward
        assert sorted(o.group.rewards) == [0.0, 0.5, 1.0]


def test_zero_advantage_looks_at_rewards() -> None:
    (group,) = groups_of(OCCURRENCE, result(0.3, 0.3), ["model0"])
    assert group.equal_rewards
    assert np.ptp(group.rewards) == 0


@pytest.mark.parametrize(("reason", "expected"), [("timeout", "timeout"), ("crash: x\ny", "crash"), ("", "unknown")])
def test_a_reason_is_counted_by_its_first_word(reason: str, expected: str) -> None:
    assert word(reason) == expected


def test_a_token_that_the_model_does_not_have_is_refused() -> None:
    def of_vocabulary(size: int) -> Manifest:
        entry = TensorEntry(
            name="model.embed_tokens.weight", shape=(size, 1), dtype="float32", offset=0, nbytes=4 * size, digest="0"
        )
        return Manifest(model_id="model0", version=1, tensors=(entry,), digest="d")

    policies = Policies({"model0": 2})
    policies.replay_announced("model0", 0, 0, None)
    judge = Curator(policies, [])
    assert judge.close(OCCURRENCE, result(1, 0)), "a version without a manifest says nothing"
    policies.replay_announced("model0", 1, 1, Published("model0", 1, 1, "h:1", of_vocabulary(4)))
    assert judge.close(OCCURRENCE, result(1, 0)), "the ids are 0 to 3"
    policies.replay_announced("model0", 2, 2, Published("model0", 2, 2, "h:1", of_vocabulary(3)))
    with pytest.raises(DataError, match="token id 3 is outside the vocabulary of model0, which has 3 tokens"):
        judge.close(OCCURRENCE, result(1, 0))


def test_the_streak_counts_samples_in_a_row_and_keeps_the_first_failure() -> None:
    streak = FailureStreak(4)
    assert streak.observe(result(Failed("crash", "first"), Failed("crash", "b")).episodes) is None
    assert streak.observe(result(1.0).episodes) is None
    assert streak.observe(result(Invalid("crash", "Traceback: later"), Failed("cut"), Failed("crash")).episodes) is None
    error = streak.observe(result(Failed("engine"), Failed("engine")).episodes)
    assert str(error) == "4 samples in a row had no reward; the first: crash\nTraceback: later"
