"""LAW 31: A reward has a hard deadline that starts when it runs, kills what overruns it, and yields
Invalid(timeout)."""

import asyncio
import time

import pytest

from astraflow.core.data import Invalid, Value
from astraflow.core.workflow.api.reward_api import AsyncRewardWrapper


def naps(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int]) -> float:
    time.sleep(float(completions))
    return 1.0


def never_lets_go(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int]) -> float:
    return float(len(str(7 ** (7**8))))  # one C call of minutes: no signal handler, no thread gets a turn


def test_the_deadline_starts_when_the_reward_runs() -> None:
    async def body() -> None:
        wrapper = AsyncRewardWrapper(naps, timeout_seconds=2.0, max_workers=1)
        rewards = await asyncio.gather(*(wrapper("", "0.4", [], []) for _ in range(6)))
        assert rewards == [Value(1.0)] * 6, "2.4 s in line for one worker, each within its own deadline"
        wrapper.close()

    asyncio.run(body())


@pytest.mark.parametrize("function", [naps, never_lets_go])
def test_what_overruns_is_killed(function) -> None:
    async def body() -> None:
        wrapper = AsyncRewardWrapper(function, timeout_seconds=0.3, max_workers=1)
        starting = asyncio.create_task(wrapper("", "60", [], []))
        assert await starting == Invalid("timeout")
        assert wrapper._pool is not None
        assert wrapper._pool._processes == [], "its process is gone"
        wrapper.close()

    asyncio.run(body())


def test_a_timeout_takes_nobody_with_it() -> None:
    async def body() -> None:
        wrapper = AsyncRewardWrapper(naps, timeout_seconds=1.0, max_workers=1)
        rewards = await asyncio.gather(*(wrapper("", nap, [], []) for nap in ("0", "60", "0")))
        assert rewards == [Value(1.0), Invalid("timeout"), Value(1.0)]
        wrapper.close()

    asyncio.run(body())
