"""LAW 8. Group statistics are taken over a group id; a short, partial or single-sample group has a defined, tested
result.

Dataflow's side: which samples are in a group, and what its mean and standard deviation are over.
"""

import pytest
import torch

from astraflow.core.data import Batch, Failed, Group, Invalid, Value
from astraflow.core.data.trajectory import Episode
from astraflow.core.protocol import messages as m
from astraflow.dataflow.curation import Occurrence, groups_of
from astraflow.dataflow.scripted import Outcome, group_result, trajectory
from astraflow.train_worker.algorithms.normalisation import group_statistics


def group_of(group_id: int, *outcomes: Outcome) -> Group:
    task = m.Task(task_id=f"t#{group_id}", group_id=group_id, data={})
    (group,) = groups_of(Occurrence(group_id, 0, "t"), group_result(task, outcomes), ["model0"])
    return group


@pytest.mark.parametrize(
    ("outcomes", "mean", "std", "rows"),
    [
        ([1, 0, 0, 1], 0.5, 0.5773503, 4),
        ([1, Failed("crash"), 0, Invalid("gold")], 0.5, 0.7071068, 2),
        ([1, Failed("crash"), Failed("crash"), Failed("crash")], 1.0, 0.0, 1),
        ([0.25], 0.25, 0.0, 1),
    ],
)
def test_statistics_are_over_the_samples_that_have_a_reward(
    outcomes: list[Outcome], mean: float, std: float, rows: int
) -> None:
    group = group_of(1, *outcomes)
    assert len(group.trajectories) == rows
    assert group.reward_mean == pytest.approx(mean)
    assert group.reward_std == pytest.approx(std, abs=1e-6)


def test_statistics_follow_the_group_id_whatever_the_rows() -> None:
    task = m.Task(task_id="t#1", group_id=1, data={})
    branches = tuple(trajectory(task, 0, Value(1.0), (0,)) for _ in range(3))
    batch = Batch.of([group_of(1, branches, 0.0), group_of(2, 1.0, 0.0, Failed("cut"), 0.5), group_of(3, 7.0)])
    assert batch.group_id.tolist() == [1, 1, 1, 1, 2, 2, 2, 3]
    # three branches of one sample count once
    assert batch.group_reward_mean.tolist() == [0.5] * 4 + [0.5] * 3 + [7.0]
    assert batch.group_reward_std[[0, 4, 7]] == pytest.approx([0.7071068, 0.5, 0.0])


def test_dataflow_and_trainer_count_a_sample_of_several_trajectories_alike() -> None:
    """A sample's reward is the mean over its trajectories, here and where advantages are made."""
    task = m.Task(task_id="t#1", group_id=1, data={})
    chain = tuple(trajectory(task, 0, Value(reward), (0,)) for reward in (8.1, 9.0, 10.0))
    group = group_of(1, chain, 2.0, (trajectory(task, 2, Value(4.0), (0,)), trajectory(task, 2, Value(0.0), (0,))))
    assert group.rewards.tolist() == pytest.approx([9.0333333, 2.0, 2.0])
    batch = Batch.of([group])
    of = group_statistics(*(torch.from_numpy(a) for a in (batch.rewards, batch.group_id, batch.sample_id)))
    assert of.mean.tolist() == pytest.approx(batch.group_reward_mean.tolist())
    assert of.std.tolist() == pytest.approx(batch.group_reward_std.tolist())


def test_an_episode_comes_to_its_last_reward_and_counts_with_their_mean() -> None:
    task = m.Task(task_id="t#1", group_id=1, data={})
    rewards = (Value(0.0), Value(1.0), Invalid("crash"))
    episode = Episode(tuple(trajectory(task, 0, reward, (0,)) for reward in rewards))
    assert (episode.reward, episode.outcome) == (0.5, Value(1.0))
    assert (Episode(episode.trajectories[2:]).reward, Episode(()).outcome) == (None, None)


def test_equal_means_of_unequal_trajectories_are_not_equal_rewards() -> None:
    task = m.Task(task_id="t#1", group_id=1, data={})
    pair = (trajectory(task, 0, Value(1.0), (0,)), trajectory(task, 0, Value(0.0), (0,)))
    assert not group_of(1, pair, 0.5).equal_rewards
    tenths = group_of(1, *(tuple(trajectory(task, i, Value(0.1), (0,)) for _ in range(3)) for i in range(3)))
    assert tenths.equal_rewards
    assert tenths.reward_std == 0.0
