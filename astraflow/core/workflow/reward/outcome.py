"""What a reward function returns or raises becomes a Reward: said once, for workers and for calls in this process."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from astraflow.core.data import Invalid, Reward, Value
from astraflow.core.workflow.reward.messages import Call
from astraflow.core.workflow.reward.shipping import RewardFunction
from astraflow.errors import brief_traceback, is_foreign, printable


def evaluate(function: RewardFunction, call: Call) -> Reward:
    """Call the function; a coroutine is run to its end."""
    try:
        result = _call(function, call)
        return to_reward(asyncio.run(result) if inspect.iscoroutine(result) else result)
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # the border of a foreign function: LAW 27
        return crash(error)


async def evaluate_here(function: RewardFunction, call: Call) -> Reward:
    """`evaluate` within a running event loop."""
    try:
        result = _call(function, call)
        return to_reward(await result if inspect.isawaitable(result) else result)
    except BaseException as error:  # the border of a foreign function: LAW 27
        if not is_foreign(error):
            raise
        return crash(error)


def to_reward(result: Any) -> Reward:
    """Take Value, Invalid and real numbers (Python's, numpy's, torch scalars); TypeError for anything else.

    What is returned can be encoded, whatever a foreign function put into its fields.
    """
    if isinstance(result, Invalid):
        return Invalid(printable(str(result.reason)), printable(str(result.detail)))
    if isinstance(result, Value):
        if not result.is_number:
            return Invalid("nan")
        parts = {printable(str(name)): float(part) for name, part in result.parts.items()}
        return Value(float(result.value), parts)
    if not hasattr(result, "__float__"):
        raise TypeError(f"a reward function returns a float or a Reward, got {type(result).__name__} {result!r:.80}")
    return to_reward(Value(float(result)))


def crash(error: BaseException) -> Invalid:
    return Invalid("crash", brief_traceback(error))


def _call(function: RewardFunction, call: Call) -> Any:
    return function(call.prompt, call.completions, call.prompt_ids, call.completion_ids, **call.row)
