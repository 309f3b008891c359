"""Rewards as workflows call them: asynchronous, with a hard deadline, and never raising.

A reward function is `fn(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row)` and
returns a float or a Reward. What it does wrong is data: NaN is Invalid(nan), an exception Invalid(crash), an overrun
Invalid(timeout).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from astraflow.core.data import Invalid, Reward
from astraflow.core.workflow.reward.messages import Call
from astraflow.core.workflow.reward.outcome import evaluate_here
from astraflow.core.workflow.reward.pool import RewardPool
from astraflow.core.workflow.reward.shipping import RewardFunction, ship
from astraflow.registry import load_target

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 15.0
"""Seconds."""
_ARGUMENTS = frozenset({"prompt", "completions", "prompt_ids", "completion_ids"})


class ServedReward:
    """A reward function as a service hands it to workflows: with the pool and the deadline that the service decided.

    Named as "module:attr", its module is imported where it runs, not here. Called, it behaves as the function itself.
    """

    def __init__(
        self,
        function: RewardFunction | str,
        *,
        pool: RewardPool | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.function = function
        self.pool = pool
        """Where it is computed; None: in this process, without a deadline."""
        self.timeout_seconds = timeout_seconds

    def __call__(self, *args: Any, **row: Any) -> Any:
        function = load_target(self.function, "reward") if isinstance(self.function, str) else self.function
        return function(*args, **row)


class AsyncRewardWrapper:
    """Await a reward function.

    `timeout_seconds` counts from when the function runs, not from when it is asked for; what overruns it is killed.
    `max_workers` bounds the processes that compute it (None: half of the cores; 0: in this process, where no deadline
    can be kept). `max_retries` calls it again after a crash or a timeout. A RaaS decides pool and, in place of the
    default, deadline of the functions that it hands out.
    """

    def __init__(
        self,
        reward_fn: RewardFunction | ServedReward,
        timeout_seconds: float = DEFAULT_TIMEOUT,
        max_workers: int | None = None,
        max_retries: int = 0,
    ) -> None:
        self.reward_fn = reward_fn
        self.timeout_seconds = timeout_seconds
        self.max_retries = max_retries
        self.first_traceback: str | None = None
        """Of the first call that crashed; None while none has."""
        self._pool: RewardPool | None
        function: RewardFunction | str
        if isinstance(reward_fn, ServedReward):
            self._pool = reward_fn.pool
            function = reward_fn.function
            if timeout_seconds == DEFAULT_TIMEOUT:
                self.timeout_seconds = reward_fn.timeout_seconds
        else:
            self._pool = None if max_workers == 0 else RewardPool(max_workers)
            function = reward_fn
        self._shipment = ship(function) if self._pool is not None else None

    async def __call__(
        self, prompt: str, completions: str, prompt_ids: Sequence[int], completion_ids: Sequence[int], **row: Any
    ) -> Reward:
        """Return the reward; keys of `row` that are named like an argument give way to it."""
        if not _ARGUMENTS.isdisjoint(row):
            row = {key: value for key, value in row.items() if key not in _ARGUMENTS}
        call = Call(prompt, completions, list(prompt_ids), list(completion_ids), row)
        for _ in range(self.max_retries + 1):
            reward = await self._compute(call)
            if not isinstance(reward, Invalid) or reward.reason not in ("crash", "timeout"):
                break
        if isinstance(reward, Invalid) and reward.detail and self.first_traceback is None:
            self.first_traceback = reward.detail
            logger.warning("a reward crashed, further crashes are only counted: %s", reward.detail)
        return reward

    def close(self) -> None:
        """End the processes that are this wrapper's own."""
        if self._pool is not None and not isinstance(self.reward_fn, ServedReward):
            self._pool.close()

    async def _compute(self, call: Call) -> Reward:
        if self._pool is None or self._shipment is None:
            return await evaluate_here(self.reward_fn, call)
        return await self._pool.run(self._shipment, call, self.timeout_seconds)
