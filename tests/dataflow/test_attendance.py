"""Which of several trainers are there."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.dataflow.attendance import Attendance


def called(attendance: Attendance, model_id: str, now: float) -> bool:
    back = attendance.enter(model_id, now)
    attendance.leave(model_id, now)
    return back


def test_who_is_silent_for_too_long_is_absent_until_the_next_call() -> None:
    attendance = Attendance(10.0)
    called(attendance, "a", 0.0)
    called(attendance, "b", 5.0)
    assert attendance.poll(10.0) == []
    assert attendance.poll(10.1) == ["a"]
    assert attendance.poll(11.0) == []
    assert attendance.absent == {"a"}
    assert called(attendance, "a", 12.0)
    assert not called(attendance, "a", 13.0)
    assert attendance.absent == frozenset()


def test_a_call_that_goes_on_is_a_sign_of_life() -> None:
    attendance = Attendance(10.0)
    attendance.enter("a", 0.0)
    called(attendance, "b", 99.0)
    assert attendance.poll(100.0) == []
    attendance.leave("a", 100.0)
    assert attendance.poll(109.0) == []
    assert attendance.poll(111.0) == []  # both are silent: nobody is stalled by the other
    called(attendance, "b", 111.0)
    assert attendance.poll(112.0) == ["a"]


@pytest.mark.parametrize("done", ["a", "b"])
def test_the_last_one_is_never_absent(done: str) -> None:
    attendance = Attendance(10.0)
    assert not attendance.done("a")
    for model_id in ("a", "b"):
        called(attendance, model_id, 0.0)
    assert attendance.done(done)
    assert not attendance.done("b" if done == "a" else "a")
    assert attendance.poll(100.0) == []


def test_a_trainer_that_was_known_before_is_expected() -> None:
    attendance = Attendance(10.0)
    attendance.expect("a", 0.0)
    called(attendance, "b", 9.0)
    assert attendance.poll(11.0) == ["a"]


@given(seed=st.integers(0, 2**32))
def test_random_calls_keep_it_consistent(seed: int) -> None:
    chance = random.Random(seed)
    attendance, inside = Attendance(5.0), list[str]()
    for now in range(120):
        model_id = chance.choice("abc")
        match chance.randrange(5):
            case 0:
                attendance.enter(model_id, now)
                inside.append(model_id)
            case 1 if inside:
                attendance.leave(inside.pop(), now)
            case 2:
                attendance.expect(model_id, now)
            case 3 if model_id not in inside:
                attendance.done(model_id)
            case _:
                assert not set(attendance.poll(now)) & set(inside)
        attendance.validate()
