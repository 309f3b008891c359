import statistics

import pytest

from astraflow.core.data import GenerationHyperparameters
from astraflow.core.workflow.api.group import EpisodeTask, GroupPolicy, GroupTask, Wait
from astraflow.errors import DataError

GROUP = GroupTask(task_id="t", group_id=5, data={}, n_samples=4)


def test_a_wait_is_log_normal_with_the_given_mean_and_the_same_for_a_group_in_every_run() -> None:
    wait = Wait(mean_s=0.5, sigma=1.0)
    waits = [wait.seconds(group_id) for group_id in range(4000)]
    assert statistics.fmean(waits) == pytest.approx(0.5, rel=0.1)
    assert wait.seconds(7) == wait.seconds(7)
    assert Wait(mean_s=0.5, sigma=0.0).seconds(1) == pytest.approx(0.5)


def test_sample_ids_hold_group_and_index() -> None:
    assert [GROUP.sample_id(index) for index in (0, 3)] == [5 << 16, (5 << 16) + 3]


def test_a_seeded_group_gives_each_sample_a_seed_of_its_own() -> None:
    seeded = GenerationHyperparameters(seed=1)
    seeds = [EpisodeTask.of(GROUP, index, seeded).gconfig.seed for index in range(4)]
    assert len(set(seeds)) == 4
    assert seeds == [EpisodeTask.of(GROUP, index, seeded).gconfig.seed for index in range(4)]
    unseeded = GenerationHyperparameters()
    assert EpisodeTask.of(GROUP, 0, unseeded).gconfig is unseeded


@pytest.mark.parametrize(
    "policy",
    [
        GroupPolicy(episode_timeout_s=0),
        GroupPolicy(max_retries=-1),
        GroupPolicy(wait=Wait(mean_s=0)),
        GroupPolicy(wait=Wait(mean_s=1, sigma=-1)),
    ],
)
def test_limits_that_make_no_sense_are_refused(policy: GroupPolicy) -> None:
    with pytest.raises(DataError, match="group_policy"):
        policy.check()
