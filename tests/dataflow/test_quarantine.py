"""Who is held back, for how long."""

import pytest

from astraflow.dataflow.quarantine import LONGEST_S, Quarantine


def test_terms_double_up_to_an_hour_until_a_success() -> None:
    quarantine = Quarantine(failures=1, seconds=1000.0)
    ends = []
    for _ in range(4):
        assert quarantine.failed("a", "x")
        quarantine.sentence("a", 0.0)
        ends.append(next(t for t in (1000.0, 2000.0, LONGEST_S) if not quarantine.holds("a", t)))
    assert ends == [1000.0, 2000.0, LONGEST_S, LONGEST_S]
    quarantine.succeeded("a")
    assert not quarantine.holds("a", 0.0)


@pytest.mark.parametrize("now", [-1e5, 0.0, 1e5])
def test_who_has_no_term_is_held_by_no_clock(now: float) -> None:
    """A clock may begin anywhere."""
    quarantine = Quarantine(failures=2, seconds=10.0)
    quarantine.failed("a", "x")
    assert not quarantine.holds("a", now)
    quarantine.sentence("a", now)
    quarantine.release("a")
    assert not quarantine.holds("a", now)


def test_names_are_held_apart_and_released_early() -> None:
    quarantine = Quarantine(failures=2, seconds=10.0)
    assert [quarantine.failed("a", "x"), quarantine.failed("b", "x"), quarantine.failed("a", "y")] == [
        False,
        False,
        True,
    ]
    assert quarantine.sentence("a", 0.0) == "2 failures in a row, no work for 10 s: y"
    assert (quarantine.holds("a", 1.0), quarantine.holds("b", 1.0)) == (True, False)
    quarantine.release("a")
    assert not quarantine.holds("a", 1.0)
