from astraflow.launch import metrics

RECORDS = [
    {"step": 0, "time": 100.0, "eval/a/avg@k": 30.0, "eval/a/greedy": 40.0, "eval/a/total": 200, "version": 0},
    {"step": 1, "time": 110.0, "dropped/stale": 1.0},
    {"step": 2, "time": 130.0, "dropped/stale": 3.0, "timeperf/eval": 5.0, "eval/a/avg@k": 50.0, "eval/b/avg@k": 70.0},
]


def test_shares_are_fractions_and_the_mean_over_datasets() -> None:
    before = metrics.accuracy(RECORDS[0])
    assert before is not None
    assert before.values() == {"sampled": 0.3, "greedy": 0.4}
    assert str(before) == "sampled 30.0%, greedy 40.0%"
    after = metrics.accuracy(RECORDS[2])
    assert after is not None
    assert after.values() == {"sampled": 0.6, "greedy": None}
    assert metrics.accuracy(RECORDS[1]) is None


def test_overall_figures_are_not_taken_for_a_dataset() -> None:
    found = metrics.accuracy({"eval/overall_avg@k": 10.0, "eval/a/avg@k": 30.0, "eval/a/avg@k_low": 20.0})
    assert found is not None
    assert found.sampled == 0.3


def test_counters_are_the_last_ones() -> None:
    assert metrics.dropped(RECORDS) == {"stale": 3}
    assert metrics.evaluated_problems(RECORDS[0]) == 200


def test_step_time_leaves_evaluations_out() -> None:
    assert metrics.step_seconds(RECORDS) == 15.0
    assert metrics.step_seconds(RECORDS[:2]) == 0.0
