import math
import operator
import textwrap

import pytest

from astraflow.core.workflow.reward.shipping import ship, unship
from astraflow.errors import ConfigError

SCALE = 3


def helper(x: float) -> float:
    return x * SCALE if x < 100 else helper(x / 10)


def test_an_importable_function_travels_by_name() -> None:
    assert ship(textwrap.dedent).target == "textwrap:dedent"
    assert unship(ship(textwrap.dedent)) is textwrap.dedent
    assert unship(ship(operator.itemgetter(1)))([4, 5]) == 5, "a callable object is pickled"
    assert unship(ship("math:sqrt")) is math.sqrt


def test_a_closure_travels_with_what_it_refers_to() -> None:
    offset = 1

    def closure(x: float, *, times: int = 2) -> float:
        return math.floor(helper(x) + offset) * times

    shipment = ship(closure)
    assert shipment.target == ""
    assert shipment.label.endswith("closure")
    assert unship(shipment)(5) == 32
    assert unship(shipment)(5, times=1) == 16


def test_a_recursive_function_finds_itself() -> None:
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert unship(ship(factorial))(5) == 120
    assert unship(ship(lambda x: helper(x)))(1000) == 30


def test_a_value_that_cannot_travel_is_named() -> None:
    handle = (x for x in ())
    with pytest.raises(ConfigError, match="generator"):
        ship(lambda: handle)
