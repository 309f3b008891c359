"""Who left, and who is another process."""

from astraflow.dataflow.farewells import REMEMBERED, Farewells


def test_an_incarnation_that_left_never_comes_back_and_another_does() -> None:
    farewells = Farewells(silent_s=15.0)
    farewells.note("r", "http://h:1", "a", 0.0)
    assert farewells.holds("r", "http://h:1", "a", 1e6)
    assert farewells.holds("r", "http://h:2", "a", 2e6)
    assert not farewells.holds("r", "http://h:1", "b", 0.0)
    assert not farewells.holds("s", "http://h:1", "a", 0.0)


def test_without_an_incarnation_it_is_another_process_after_a_silence_or_at_another_address() -> None:
    farewells = Farewells(silent_s=15.0)
    farewells.note("r", "http://h:1", "", 0.0)
    assert all(farewells.holds("r", "http://h:1", "", now) for now in (5.0, 20.0, 35.0))
    assert not farewells.holds("r", "http://h:2", "", 35.0)
    assert not farewells.holds("r", "http://h:1", "", 50.1)
    assert not farewells.holds("r", "http://h:1", "", 50.2)


def test_the_newest_are_remembered() -> None:
    farewells = Farewells(silent_s=15.0)
    for number in range(REMEMBERED + 1):
        farewells.note(f"r{number}", "http://h:1", "a", 0.0)
    assert not farewells.holds("r0", "http://h:1", "a", 0.0)
    assert farewells.holds("r1", "http://h:1", "a", 0.0)
