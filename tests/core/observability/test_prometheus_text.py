import math

from astraflow.core.observability.prometheus_text import exposition


def test_names_and_numbers() -> None:
    stats = {"raas/size": 2.0, "dropped/zero-x": 0.5, "big": 123456789.0}
    assert exposition(stats) == "astraflow_big 123456789\nastraflow_dropped_zero_x 0.5\nastraflow_raas_size 2\n"
    assert exposition({}) == ""


def test_numbers_that_are_not_finite() -> None:
    assert exposition({"a": math.nan, "b": math.inf, "c": -math.inf}).split("\n")[:3] == [
        "astraflow_a NaN",
        "astraflow_b +Inf",
        "astraflow_c -Inf",
    ]


def test_labels_are_escaped() -> None:
    assert exposition({"x": 1.0}, {"trial": 'a"b\\c\nd'}) == 'astraflow_x{trial="a\\"b\\\\c\\nd"} 1\n'


def test_names_that_become_one_are_told_apart() -> None:
    assert exposition({"avg@k": 1.0, "avg/k": 2.0}) == (
        'astraflow_avg_k{metric="avg/k"} 2\nastraflow_avg_k{metric="avg@k"} 1\n'
    )
