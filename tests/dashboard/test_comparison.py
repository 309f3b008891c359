from astraflow.dashboard.comparison import ABSENT, difference_rows, shown, summary_rows


def test_summaries_side_by_side() -> None:
    rows = summary_rows([{"rl_steps": 80, "dropped": {"stale": 1}}, {}])
    assert [(row.key, row.values) for row in rows] == [("rl_steps", ("80", ABSENT)), ("dropped.stale", ("1", ABSENT))]


def test_only_keys_that_differ_and_shape_a_run() -> None:
    first = {"experiment": {"trial_name": "a", "seed": 1}, "raas": {"threads": 1, "models": {}}}
    second = {"experiment": {"trial_name": "b", "seed": 2}, "raas": {"threads": 1, "models": {}, "port": 0}}
    rows = difference_rows([first, second])
    assert [(row.key, row.values) for row in rows] == [("experiment.seed", ("1", "2")), ("raas.port", (ABSENT, "0"))]


def test_values_in_few_characters() -> None:
    values = [None, True, 0.00012345, 12370.5, [0.935, 0.98], [], "x"]
    assert [shown(value) for value in values] == ["null", "true", "0.0001234", "12,370", "0.935, 0.98", "[]", "x"]
