"""The version barrier: rounds, deadlines, membership."""

import asyncio
import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.dataflow.barrier import Announcements, Round, VersionBarrier
from astraflow.dataflow.waiting import Waits
from astraflow.errors import InvariantError


def barrier(*members: str) -> VersionBarrier:
    b = VersionBarrier(10.0)
    for member in members:
        b.join(member)
    return b


def test_one_model_is_always_a_round() -> None:
    b = barrier("a")
    assert b.arrive("a", 0) == Round(0, ("a",))
    assert b.arrive("a", 1) == Round(1, ("a",))


def test_a_round_ends_with_its_last_member() -> None:
    b = barrier("a", "b", "c")
    assert b.arrive("a", 0) is None
    assert b.arrive("c", 5) is None
    assert b.awaited() == {"b"}
    assert b.arrive("b", 9) == Round(0, ("a", "b", "c"))


def test_a_deadline_names_the_laggard_and_later_rounds_do_not_wait_for_it() -> None:
    b = barrier("a", "b")
    b.arrive("a", 0)
    assert b.poll(9.9) is None
    assert b.poll(10) == Round(0, ("a",), ("b",))
    assert b.absent == ("b",)
    assert b.arrive("a", 11) == Round(1, ("a",))
    # it comes back: it is a member like before
    assert b.arrive("b", 12) is None
    assert b.arrive("a", 13) == Round(2, ("a", "b"))


def test_leaving_completes_a_round() -> None:
    b = barrier("a", "b")
    b.arrive("a", 0)
    assert b.leave("b", 1) == Round(0, ("a",))


def test_a_round_does_not_wait_for_groups_that_its_own_end_would_let_start() -> None:
    barrier = VersionBarrier(9.0)
    for model_id in "abc":
        barrier.join(model_id)
    assert barrier.in_vain({"b"}, {"a"}) == set()
    barrier.arrive("a", 0.0)
    assert barrier.in_vain({"b", "c"}, set()) == set()  # more groups may start
    assert barrier.in_vain({"b"}, {"a"}) == set()  # c trains, and gives room
    assert barrier.in_vain({"b", "c"}, {"a", "c"}) == set()  # c has its batch
    assert barrier.in_vain({"b", "c"}, {"a"}) == {"b", "c"}
    barrier.arrive("c", 1.0)
    assert barrier.in_vain({"b"}, {"a"}) == {"b"}
    done = barrier.excuse("b", 2.0)
    assert done is not None
    assert (done.arrived, done.laggards) == (("a", "c"), ())


def test_a_stranger_is_refused() -> None:
    b = barrier("a")
    with pytest.raises(InvariantError, match="not registered"):
        b.arrive("b", 0)
    b.validate()


@given(seed=st.integers(0, 2**32))
def test_random_orders_never_wait_beyond_a_deadline(seed: int) -> None:
    chance = random.Random(seed)
    b = barrier("a")
    members = {"a"}
    opened: float | None = None
    for now in range(100):
        name = chance.choice("abcd")
        match chance.randrange(4):
            case 0:
                b.join(name)
                members.add(name)
            case 1 if name in members:
                opened = now if opened is None else opened
                done = b.arrive(name, now)
                opened = None if done else opened
            case 2 if len(members) > 1 and name in members:
                members.discard(name)
                b.leave(name, now)
                opened = b.deadline - 10 if b.deadline is not None else None
            case _:
                done = b.poll(now)
                if done is not None:
                    opened = None
                assert opened is None or now < opened + 10
        b.validate()
        assert b.awaited() <= members


def test_notifications_wait_for_each_other() -> None:
    async def body() -> None:
        waits = Waits()
        announcements = Announcements(60, waits, asyncio.get_running_loop().time)
        for model in ("a", "b"):
            announcements.barrier.join(model)
        first = asyncio.create_task(announcements.wait("a", 3))
        await asyncio.sleep(0)
        (waiting,) = waits.describe()
        assert (waiting["who"], waiting["on"]) == ("version 3 of a", "the versions of b")
        await announcements.wait("b", 7)
        await first
        assert waits.describe() == []

    asyncio.run(body())


def test_a_missed_deadline_is_logged_with_its_laggard(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        announcements = Announcements(0.01, Waits(), asyncio.get_running_loop().time)
        for model in ("a", "dead"):
            announcements.barrier.join(model)
        await announcements.wait("a", 1)
        await announcements.wait("a", 2)

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(body(), 60))
    assert [record.message for record in caplog.records] == [
        "no version of dead within 0.01 s: a go on without it",
    ]
