"""Speed estimates, and the weights that follow."""

import pytest

from astraflow.dataflow.raas_speed import FORGET_S, SMOOTHING, Speeds


def test_weights_are_places_until_something_is_measured() -> None:
    assert Speeds().weights({"a": 4, "b": 8}, 0.0) == {"a": 4.0, "b": 8.0}


def test_a_slow_one_weighs_less_and_an_unknown_one_is_average() -> None:
    speeds = Speeds()
    speeds.finished("fast", 1.0, 0.0)
    speeds.finished("slow", 3.0, 0.0)
    assert speeds.weights({"fast": 2, "slow": 2, "new": 2}, 1.0) == pytest.approx({"fast": 4, "slow": 4 / 3, "new": 2})


def test_an_estimate_follows_slowly_and_is_forgotten() -> None:
    speeds = Speeds()
    speeds.finished("a", 1.0, 0.0)
    speeds.finished("a", 2.0, 1.0)
    assert speeds.seconds("a") == pytest.approx(1.0 + SMOOTHING)
    speeds.finished("b", 1.0, FORGET_S + 2)
    assert speeds.weights({"a": 1, "b": 1}, FORGET_S + 2) == {"a": 1.0, "b": 1.0}
    speeds.finished("a", 5.0, FORGET_S + 2)
    assert speeds.seconds("a") == 5.0
    speeds.forget("a")
    assert speeds.seconds("a") is None
