"""LAW 8. Group statistics are taken over a group id; a short, partial or single-sample group has a defined, tested
result.

Dataflow's side: which samples are in a group, and what its mean and standard deviation are over.
"""

import pytest

from astraflow.core.data import Batch, Failed, Group, Invalid, Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.curation import Occurrence, groups_of
from astraflow.dataflow.scripted import Outcome, group_result, trajectory


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
