"""Advice on the number of RaaS."""

import pytest

from astraflow.core.protocol.messages import Advice
from astraflow.dataflow.scaling import Advisor, Sample, number


def advice(waiting: float, idle: float, stale: int = 0, size: int = 4, seconds: int = 60) -> Advice:
    """After so many seconds in which each sample was the same and ten groups ended a second."""
    advisor = Advisor(window_s=60.0)
    for at in range(0, seconds + 2, 2):
        advisor.see(Sample(float(at), waiting, idle, 10 * at, stale * at))
    return advisor.advise(size)


@pytest.mark.parametrize(
    ("waiting", "idle", "stale", "size", "action", "instances"),
    [
        (0.5, 0.0, 0, 4, "grow", 2),
        (0.3, 0.1, 0, 1, "grow", 1),
        (1.0, 0.0, 0, 4, "grow", 4),
        (0.5, 0.5, 0, 4, "hold", 0),
        (0.1, 0.6, 0, 4, "hold", 0),
        (0.0, 0.6, 0, 4, "shrink", 2),
        (0.0, 0.2, 0, 4, "hold", 0),
        (0.0, 0.0, 2, 4, "shrink", 1),
        (0.0, 0.9, 9, 1, "hold", 0),
        (0.0, 1.0, 0, 4, "shrink", 3),
    ],
)
def test_advice(waiting: float, idle: float, stale: int, size: int, action: str, instances: int) -> None:
    found = advice(waiting, idle, stale, size)
    assert (found.action, found.instances) == (action, instances)
    assert number(found) == {"grow": instances, "shrink": -instances, "hold": 0}[action]


def test_the_bound_is_named_where_it_limits() -> None:
    assert "the staleness bound limits what may start" in advice(0.5, 0.5).reason


def test_nothing_is_advised_before_it_was_measured_long_enough() -> None:
    assert "less than 60 s" in advice(1.0, 0.0, seconds=58).reason
    assert Advisor(60.0).advise(3).action == "hold"


def test_a_change_begins_a_new_measurement() -> None:
    advisor = Advisor(window_s=10.0)
    for at in range(12):
        advisor.see(Sample(float(at), 1.0, 0.0, at, 0, size=1))
    assert advisor.advise(1).action == "grow"
    advisor.see(Sample(12.0, 1.0, 0.0, 12, 0, size=2))
    assert advisor.advise(2).action == "hold"


def test_what_was_before_the_window_is_forgotten() -> None:
    advisor = Advisor(window_s=10.0)
    for at in range(30):
        advisor.see(Sample(float(at), 1.0 if at < 15 else 0.0, 0.0, at, 0))
    assert advisor.advise(2) == Advice(
        action="hold", instances=0, reason="trainers wait 0% of the time, 0% of the places are idle"
    )
