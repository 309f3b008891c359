"""Statistics of rollouts."""

import pytest

from astraflow.core.data import Failed, Invalid, Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.scripted import group_result
from astraflow.dataflow.statistics import RATE_WINDOW_S, RolloutStatistics

TASK = m.Task(task_id="t", group_id=1, data={})


def test_all_finished_samples_count_until_they_are_taken() -> None:
    now = 0.0
    statistics = RolloutStatistics(lambda: now)
    statistics.finished(group_result(TASK, [1.0, 0.0, Failed("crash: x"), Invalid("timeout")], (0, 0, 0)), 2.0)
    statistics.finished(group_result(TASK, [1.0, 1.0], (0, 0, 0, 0, 0)), 4.0)
    now = 2.0
    assert statistics.peek()["rollout/reward_mean"] == 0.75
    assert statistics.take() == {
        "rollout/samples": 4,
        "rollout/tokens": 19,
        "rollout/tokens_per_s": 9.5,
        "rollout/reward_mean": 0.75,
        "rollout/length_mean": pytest.approx(19 / 5),
        "rollout/lost/crash": 1,
        "rollout/lost/timeout": 1,
        "stop/stop": 5,
        "timeperf/group_s": 3.0,
    }
    assert statistics.take() == {"rollout/samples": 0, "rollout/tokens": 0, "rollout/tokens_per_s": 9.5}
    now += RATE_WINDOW_S + 1
    assert statistics.tokens_per_s() == 0.0


def test_the_parts_of_rewards_are_averaged_by_name() -> None:
    result = group_result(TASK, [Value(1.1, {"correct": 1.0, "format": 1.0}), Value(0.1, {"format": 1.0}), 0.0, 0.0])
    statistics = RolloutStatistics(lambda: 0.0)
    statistics.finished(result, 1.0)
    stats = statistics.take()
    assert stats["rollout/reward_mean"] == pytest.approx(0.3)
    assert (stats["rollout/reward/correct"], stats["rollout/reward/format"]) == (0.25, 0.5)
