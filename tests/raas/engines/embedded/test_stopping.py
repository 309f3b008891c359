"""Stop strings and penalties: where an answer ends does not depend on how it was cut into parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse, StopReason
from astraflow.core.model import new_model
from astraflow.core.protocol.messages import VersionState
from astraflow.core.text import tiny_tokenizer
from astraflow.raas.engines.base import Output
from astraflow.raas.engines.embedded.engine import EmbeddedEngine
from astraflow.raas.partial import continuation, joined
from astraflow.raas.router import Router

TOKENIZER = tiny_tokenizer()
PROMPT = np.array(TOKENIZER.encode("hello world"), np.int32)


def request(rid: str, **config: Any) -> ModelRequest:
    gconfig = GenerationHyperparameters(**{"max_new_tokens": 60, "ignore_eos": True, **config})
    return ModelRequest(rid=rid, input_ids=PROMPT, gconfig=gconfig)


def run(body: Callable[[EmbeddedEngine], Awaitable[None]]) -> None:
    async def main() -> None:
        engine = EmbeddedEngine("m", new_model("tiny-0.2m", seed=3), tokenizer=TOKENIZER, max_running_requests=16)
        try:
            await asyncio.wait_for(body(engine), 60)
        finally:
            await engine.close()

    asyncio.run(main())


def text_of(tokens: np.ndarray) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=False)


def first_stop(tokens: np.ndarray, stop: str, min_new_tokens: int) -> int:
    """Tokens up to the first that completes `stop` after `min_new_tokens` others; all of them where none does."""
    for count in range(min_new_tokens + 1, len(tokens) + 1):
        before, text = text_of(tokens[: count - 1]), text_of(tokens[:count])
        if any(text.endswith(stop, 0, end) for end in range(len(before) + 1, len(text) + 1)):
            return count
    return len(tokens)


@pytest.mark.parametrize("min_new_tokens", [0, 1, 3, 10, 30])
def test_a_stop_string_ends_where_it_is_completed_whatever_came_before(min_new_tokens: int) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        # little temperature: letters repeat, so that earlier occurrences stand in what is looked at
        sampling: dict[str, Any] = {"seed": 5, "temperature": 0.35}
        free = (await engine.agenerate(request("free", **sampling))).output_tokens
        stops = sorted({text_of(free[i : i + n]) for i in range(0, 58, 4) for n in (1, 2)} - {""})
        config: dict[str, Any] = {"min_new_tokens": min_new_tokens, **sampling}
        answers = await asyncio.gather(*(engine.agenerate(request(stop, stop=(stop,), **config)) for stop in stops))
        for stop, answer in zip(stops, answers, strict=True):
            expected = first_stop(free, stop, min_new_tokens)
            assert (stop, len(answer.output_tokens)) == (stop, expected)
            assert answer.stop_reason is (StopReason.STOP if expected < 60 else answer.stop_reason)

    run(body)


def test_a_stop_string_that_came_too_early_still_ends_the_answer_when_it_comes_again() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        free = (await engine.agenerate(request("free", greedy=True))).output_tokens
        letter = text_of(free[:1])
        run_of = next(i for i, token in enumerate(free) if token != free[0])
        assert run_of > 12, "the model repeats itself"
        for early in range(2, 9):
            answer = await engine.agenerate(request(f"{early}", greedy=True, stop=(letter,), min_new_tokens=early))
            assert (answer.stop_reason, len(answer.output_tokens)) == (StopReason.STOP, early + 1)

    run(body)


def cut(whole: ModelResponse, count: int) -> ModelResponse:
    return ModelResponse(
        input_tokens=whole.input_tokens,
        output_tokens=whole.output_tokens[:count],
        output_logprobs=whole.output_logprobs[:count],
        output_versions=whole.output_versions[:count],
        stop_reason=StopReason.ABORT,
    )


@pytest.mark.parametrize("count", [1, 7, 20, 59])
def test_a_continuation_counts_the_tokens_before_it_for_penalties(count: int) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        asked = request("whole", greedy=True, frequency_penalty=1.0)
        whole = await engine.agenerate(asked)
        parts = [cut(whole, count)]
        parts.append(await engine.agenerate(continuation(asked, parts)))
        answer = joined(asked, parts)
        assert answer.output_tokens.tolist() == whole.output_tokens.tolist()
        np.testing.assert_allclose(answer.output_logprobs, whole.output_logprobs, atol=1e-4)

    run(body)


def test_a_stop_string_across_the_border_of_a_continuation_ends_it() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        free = await engine.agenerate(request("free", greedy=True, frequency_penalty=1.0))
        for first in range(10, 40, 3):
            stop = text_of(free.output_tokens[first : first + 4])
            asked = request(f"w{first}", greedy=True, frequency_penalty=1.0, stop=(stop,))
            whole = await engine.agenerate(asked)
            for inside in range(1, 4):
                parts = [cut(whole, len(whole.output_tokens) - inside)]
                parts.append(await engine.agenerate(continuation(asked, parts)))
                answer = joined(asked, parts)
                assert (stop, answer.output_tokens.tolist()) == (stop, whole.output_tokens.tolist())
                assert answer.stop_reason is StopReason.STOP

    run(body)


def test_a_preempted_answer_is_the_uninterrupted_one_penalties_included() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        router = Router([engine])
        router.serves("m", VersionState(number=0, digest="d", verified=True))
        config: dict[str, Any] = {"greedy": True, "frequency_penalty": 0.7, "max_new_tokens": 300}
        whole = await router.agenerate(request("whole", **config))
        heard = asyncio.Event()

        def listen(before: int, output: Output) -> None:
            heard.set()

        flight = asyncio.create_task(router.agenerate(request("cut", **config), listen))
        for _ in range(3):
            heard.clear()
            await heard.wait()
            await router.pause("m", "abort")
            router.resume("m")
        assert (await flight).output_tokens.tolist() == whole.output_tokens.tolist()

    run(body)
