"""How many groups a batch replays, and which."""

import pytest

from astraflow.core.data import Group, Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.replays import ReplayPool, replay_count
from astraflow.dataflow.scripted import trajectory
from astraflow.errors import UnknownNameError


def group(group_id: int, rewards: tuple[float, ...] = (0.0, 1.0)) -> Group:
    task = m.Task(task_id="t", group_id=group_id, data={})
    trajectories = tuple(trajectory(task, i, Value(r), (0,)) for i, r in enumerate(rewards))
    return Group(group_id=group_id, task_id="t", prompt_id=0, model_id="model0", trajectories=trajectories)


def pool(policy: str = "uniform", groups: int = 8, seed: int = 1) -> ReplayPool:
    made = ReplayPool("model0", policy, seed)
    for number in range(groups):
        made.add(group(number), number)
    return made


@pytest.mark.parametrize(
    ("n", "ratio", "count"),
    [(10, 0.35, 3), (10, 1.5, 10), (10, -1.0, 0), (10, 0.0, 0), (100, 0.29, 29), (3, 0.34, 1), (1, 0.99, 0)],
)
def test_the_floor_of_a_clamped_share(n: int, ratio: float, count: int) -> None:
    assert replay_count(n, ratio) == count


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="known: newest, reward_spread, uniform"):
        ReplayPool("model0", "oldest")


def test_newest_takes_the_last_trained_first() -> None:
    assert [g.group_id for g in pool("newest").pick(3, version=5)] == [7, 6, 5]


def test_reward_spread_takes_what_differs_most_and_among_equals_the_last_trained() -> None:
    made = ReplayPool("model0", "reward_spread")
    for number, rewards in enumerate([(0.0, 1.0), (0.0, 0.5), (0.0, 1.0), (0.0, 2.0)]):
        made.add(group(number, rewards), 0)
    assert [g.group_id for g in made.pick(3, version=0)] == [3, 2, 0]


def test_uniform_is_a_function_of_seed_and_version() -> None:
    picks = {(seed, v): [g.group_id for g in pool(seed=seed).pick(4, v)] for seed in (1, 2) for v in range(20)}
    assert picks == {(seed, v): [g.group_id for g in pool(seed=seed).pick(4, v)] for seed, v in picks}
    assert all(len(set(ids)) == 4 for ids in picks.values())
    assert {i for ids in picks.values() for i in ids} == set(range(8))
    assert len({tuple(ids) for ids in picks.values()}) > 30


def test_a_short_pool_gives_what_it_has_and_what_is_too_old_leaves_it() -> None:
    made = pool(groups=4)
    assert len(made.pick(9, 0)) == 4
    made.expire(2)
    assert sorted(g.group_id for g in made.pick(9, 0)) == [2, 3]
