"""Waits with an owner and a deadline."""

import asyncio

import pytest

from astraflow.dataflow.waiting import Pulse, Waits
from astraflow.errors import DeadlineError


def test_a_missed_deadline_says_who_what_and_since_when() -> None:
    async def body() -> None:
        waits = Waits(clock=lambda: 0.0)
        never = Pulse()
        with pytest.raises(DeadlineError, match=r"^a trainer waited 0.001 s, since \d\d:\d\d:\d\d, on 3 more groups$"):
            await waits.until("a trainer", lambda: "3 more groups", 0.001, never.wait())
        assert waits.describe() == []

    asyncio.run(body())


def test_a_pulse_wakes_all_who_wait_and_nobody_who_comes_later() -> None:
    async def body() -> None:
        pulse = Pulse()
        pulse.set()
        tasks = [asyncio.create_task(pulse.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        pulse.set()
        await asyncio.gather(*tasks)

    asyncio.run(body())


def test_waits_are_shown_while_they_last() -> None:
    async def body() -> None:
        waits = Waits(clock=lambda: 12.0)
        pulse = Pulse()
        have = 1
        task = asyncio.create_task(waits.until("x", lambda: f"{3 - have} more", 5, pulse.wait()))
        await asyncio.sleep(0)
        have = 2
        assert waits.describe() == [{"who": "x", "on": "1 more", "since": 12.0}]
        pulse.set()
        await task

    asyncio.run(body())
