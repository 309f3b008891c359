"""Rewards as workflows await them; the same results from a worker and from this process."""

import asyncio
import math
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from astraflow.core.data import Invalid, Reward, Value
from astraflow.core.workflow.api.reward_api import AsyncRewardWrapper, ServedReward
from astraflow.core.workflow.reward.pool import RewardPool
from astraflow.errors import ConfigError

FACTOR = 2


def reward(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any) -> Any:
    """Does what the completion says."""
    match completions:
        case "hang":
            time.sleep(60)
        case "crash":
            raise KeyError("gold")
        case "die":
            os._exit(3)
        case "nan":
            return math.nan
        case "infinite value":
            return Value(math.inf)
        case "huge":  # a number here, infinite as float32
            return 1e300
        case "invalid":
            return Invalid("gold")
        case "none":
            return None
        case "row":
            return row["answer"] * FACTOR
        case "pid":
            return os.getpid()
    return len(prompt) + len(prompt_ids) + len(completion_ids)


async def asynchronous(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int]) -> float:
    await asyncio.sleep(0)
    return 0.5


def compute(*completions: str, function: Callable[..., Any] = reward, **options: Any) -> list[Reward]:
    async def body() -> list[Reward]:
        wrapper = AsyncRewardWrapper(function, **options)
        try:
            calls = [wrapper("pp", each, [1, 2, 3], [4], answer=21) for each in completions]
            return await asyncio.gather(*calls)
        finally:
            wrapper.close()

    return asyncio.run(body())


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_function_returns_or_raises_is_a_reward(workers: int) -> None:
    completions = ("x", "row", "nan", "infinite value", "huge", "invalid", "crash", "none")
    got = compute(*completions, max_workers=workers)
    assert got[:6] == [Value(6.0), Value(42.0), *[Invalid("nan")] * 3, Invalid("gold")]
    crashed, nothing = got[6:]
    assert isinstance(crashed, Invalid)
    assert isinstance(nothing, Invalid)
    assert (crashed.reason, nothing.reason) == ("crash", "crash")
    assert "KeyError: 'gold'" in crashed.detail
    assert "returns a float or a Reward, got NoneType" in nothing.detail


@pytest.mark.parametrize("workers", [0, 1])
def test_coroutine_functions_are_awaited(workers: int) -> None:
    async def body() -> None:
        wrapper = AsyncRewardWrapper(asynchronous, max_workers=workers)
        assert await wrapper("", "", [], []) == Value(0.5)
        wrapper.close()

    asyncio.run(body())


def test_a_row_may_have_keys_that_are_named_like_arguments() -> None:
    async def body() -> None:
        wrapper = AsyncRewardWrapper(lambda prompt, completions, prompt_ids, completion_ids, **row: len(row), 15, 0)
        assert await wrapper("p", "c", [], [], answer=1, extra=2) == Value(2.0)
        row = {"prompt": "again", "answer": 1}
        served = ServedReward(lambda *a, **k: len(k))
        assert await AsyncRewardWrapper(served)("p", "c", [], [], **{k: v for k, v in row.items() if k != "prompt"})

    asyncio.run(body())


def test_retries_are_bounded_and_only_for_crashes_and_timeouts() -> None:
    calls: list[str] = []

    def flaky(prompt: str, completions: str, *ids: list[int]) -> float:
        calls.append(completions)
        if completions == "flaky" and calls.count("flaky") < 3:
            raise KeyError
        return math.nan if completions == "nan" else 1.0

    async def body() -> None:
        wrapper = AsyncRewardWrapper(flaky, max_workers=0, max_retries=2)
        assert await wrapper("", "flaky", [], []) == Value(1.0)
        assert await wrapper("", "nan", [], []) == Invalid("nan")
        assert calls.count("nan") == 1

    asyncio.run(body())


def test_the_first_traceback_is_kept() -> None:
    async def body() -> None:
        wrapper = AsyncRewardWrapper(reward, max_workers=0)
        await wrapper("", "crash", [], [])
        await wrapper("", "none", [], [])
        assert "KeyError" in str(wrapper.first_traceback)

    asyncio.run(body())


def test_closures_and_lambdas_run_in_a_worker_too() -> None:
    offset = 40

    def closure(prompt: str, completions: str, *ids: list[int], **row: Any) -> float:
        return math.floor(offset + FACTOR)

    assert compute("x", function=closure, max_workers=1) == [Value(42.0)]
    assert compute("x", function=lambda *a, **k: FACTOR, max_workers=1) == [Value(2.0)]


def test_what_cannot_travel_says_so_at_once() -> None:
    lock = asyncio.Lock()
    handle = open(os.devnull)  # noqa: SIM115
    try:
        with pytest.raises(ConfigError, match="max_workers=0"):
            AsyncRewardWrapper(lambda *a, **k: (lock, handle.fileno()) and 1.0)
    finally:
        handle.close()


def test_a_service_decides_pool_and_deadline() -> None:
    async def body() -> None:
        pool = RewardPool(1)
        served = ServedReward(reward, pool=pool, timeout_seconds=1.0)
        first, second = AsyncRewardWrapper(served), AsyncRewardWrapper(served)
        assert first.timeout_seconds == 1.0
        assert AsyncRewardWrapper(served, timeout_seconds=3).timeout_seconds == 3
        pids = await asyncio.gather(first("", "pid", [], []), second("", "pid", [], []))
        assert isinstance(pids[0], Value)
        assert pids[0] == pids[1] != Value(os.getpid())
        assert await first("", "hang", [], []) == Invalid("timeout")
        assert served("pp", "x", [], []) == 2
        pool.close()

    asyncio.run(body())
