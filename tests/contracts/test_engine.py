"""One contract for every engine (astraflow/raas/engines/base.py). Event driven: no test waits for a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse, StopReason
from astraflow.core.model import new_model
from astraflow.errors import DataError, EngineError
from astraflow.raas.engines.base import Engine, Output
from astraflow.raas.engines.embedded.engine import EmbeddedEngine
from astraflow.raas.engines.scripted import ScriptedEngine

END = 6
KINDS = ("embedded", "scripted")


def open_engine(kind: str) -> Engine:
    if kind == "scripted":
        return ScriptedEngine(
            "m", lambda request: [*range(10, 60)] * 20, eos_token_ids=[END], weights={"w": np.zeros(3)}
        )
    return EmbeddedEngine("m", new_model("tiny-0.2m", seed=1), max_running_requests=3, seed=7)


def request(rid: str = "r", prompt: tuple[int, ...] = (3, 10, 20), **config: object) -> ModelRequest:
    gconfig = GenerationHyperparameters(**{"max_new_tokens": 8, "ignore_eos": True, **config})  # type: ignore[arg-type]
    return ModelRequest(rid=rid, input_ids=np.array(prompt, np.int32), gconfig=gconfig)


def run(kind: str, body: Callable[[Engine], Awaitable[None]]) -> None:
    async def main() -> None:
        engine = open_engine(kind)
        try:
            await asyncio.wait_for(body(engine), 60)
        finally:
            await engine.close()

    asyncio.run(main())


pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_a_response_is_aligned_and_ends_by_length(kind: str) -> None:
    async def body(engine: Engine) -> None:
        response = (await engine.agenerate(request())).check()
        assert response.input_tokens.tolist() == [3, 10, 20]
        assert len(response.output_tokens) == 8
        assert response.output_tokens.dtype == np.int32
        assert response.output_logprobs.dtype == np.float32
        assert (response.output_logprobs <= 0).all()
        assert response.output_versions.tolist() == [0] * 8
        assert response.stop_reason is StopReason.LENGTH
        assert response.latency >= response.ttft >= 0
        assert engine.load().tokens_generated >= 8

    run(kind, body)


def test_max_tokens_bounds_prompt_and_output_together(kind: str) -> None:
    async def body(engine: Engine) -> None:
        assert len((await engine.agenerate(request("a", max_tokens=5))).output_tokens) == 2
        full = await engine.agenerate(request("b", max_tokens=3))
        assert (len(full.output_tokens), full.stop_reason) == (0, StopReason.LENGTH)

    run(kind, body)


def test_more_requests_than_places_are_all_answered(kind: str) -> None:
    async def body(engine: Engine) -> None:
        lengths = [3, 1, 8, 5, 2, 8, 4, 1, 6, 7]
        answers = await asyncio.gather(
            *(engine.agenerate(request(str(i), max_new_tokens=n)) for i, n in enumerate(lengths))
        )
        assert [len(answer.output_tokens) for answer in answers] == lengths
        load = engine.load()
        assert (load.running, load.queued, load.tokens_generated) == (0, 0, sum(lengths))

    run(kind, body)


def test_stop_token_ids_end_a_generation_with_stop(kind: str) -> None:
    async def body(engine: Engine) -> None:
        free = await engine.agenerate(request("free", greedy=True))
        token = int(free.output_tokens[3])
        first = free.output_tokens.tolist().index(token)
        cut = await engine.agenerate(request("cut", greedy=True, stop_token_ids=(token,)))
        assert cut.output_tokens.tolist() == free.output_tokens.tolist()[: first + 1]
        assert cut.stop_reason is StopReason.STOP

    run(kind, body)


def test_update_lets_flights_go_on_under_the_new_version(kind: str) -> None:
    async def body(engine: Engine) -> None:
        begun = asyncio.Event()
        flight = engine.agenerate(request("long", max_new_tokens=900), lambda before, output: begun.set())
        long = asyncio.create_task(flight)
        await begun.wait()
        assert await engine.update(5, lambda weights: sorted(weights)[0]) in {"model.embed_tokens.weight", "w"}
        assert engine.get_version() == 5
        response = await long
        versions = response.output_versions
        assert set(versions.tolist()) == {0, 5}
        assert (np.diff(versions) >= 0).all()
        assert (await engine.agenerate(request("after"))).output_versions.tolist() == [5] * 8

    run(kind, body)


def test_an_update_that_raises_leaves_the_version(kind: str) -> None:
    async def body(engine: Engine) -> None:
        def apply(weights: object) -> None:
            raise ValueError("not these")

        flight = asyncio.create_task(engine.agenerate(request(max_new_tokens=30)))
        with pytest.raises(ValueError, match="not these"):
            await engine.update(1, apply)
        assert engine.get_version() == 0
        assert (await flight).output_versions.tolist() == [0] * 30

    run(kind, body)


def test_abort_returns_what_there_is(kind: str) -> None:
    async def body(engine: Engine) -> None:
        flights = [asyncio.create_task(engine.agenerate(request(f"{i}", max_new_tokens=900))) for i in range(5)]
        await asyncio.sleep(0)
        await engine.abort(["0", "1", "2", "3", "4", "unknown"])
        for response in await asyncio.gather(*flights):
            assert response.check().stop_reason is StopReason.ABORT
            assert len(response.output_tokens) < 900
        assert engine.load().running == 0

    run(kind, body)


def test_one_rid_in_flight_is_one_request(kind: str) -> None:
    async def body(engine: Engine) -> None:
        first, second = await asyncio.gather(engine.agenerate(request()), engine.agenerate(request()))
        assert first is second
        assert engine.load().tokens_generated == 8

    run(kind, body)


def test_a_cancelled_wait_aborts_its_request_unless_another_waits(kind: str) -> None:
    async def body(engine: Engine) -> None:
        lost = asyncio.create_task(engine.agenerate(request("lost", max_new_tokens=900)))
        shared = [asyncio.create_task(engine.agenerate(request("kept", max_new_tokens=20))) for _ in range(2)]
        await asyncio.sleep(0)
        lost.cancel()
        shared[0].cancel()
        assert len((await shared[1]).output_tokens) == 20
        with pytest.raises(asyncio.CancelledError):
            await lost
        await engine.close()
        assert engine.load().tokens_generated < 900

    run(kind, body)


@pytest.mark.parametrize("ending", ["cancelled", "aborted"])
def test_a_rid_that_was_ended_is_answered_anew(kind: str, ending: str) -> None:
    """What was cut goes to who waited when it was cut, never to who asks afterwards, however soon."""

    async def body(engine: Engine) -> None:
        for round_ in range(20):
            flight = asyncio.create_task(engine.agenerate(request(max_new_tokens=900)))
            for _ in range(round_ % 4):
                await asyncio.sleep(0)
            if ending == "aborted":
                await asyncio.sleep(0)
                await engine.abort(["r"])
            else:
                flight.cancel()
            again = asyncio.create_task(engine.agenerate(request(max_new_tokens=20)))
            cut = (await asyncio.gather(flight, return_exceptions=True))[0]
            answer = await again
            assert (answer.stop_reason, len(answer.output_tokens)) == (StopReason.LENGTH, 20)
            if ending == "aborted":
                assert cut.stop_reason is StopReason.ABORT
            else:
                assert isinstance(cut, asyncio.CancelledError)

    run(kind, body)


def test_close_aborts_and_refuses(kind: str) -> None:
    async def body(engine: Engine) -> None:
        flight: asyncio.Task[ModelResponse] = asyncio.create_task(engine.agenerate(request(max_new_tokens=900)))
        await asyncio.sleep(0)
        await engine.close()
        assert (await flight).stop_reason is StopReason.ABORT
        with pytest.raises(EngineError, match="closed"):
            await engine.agenerate(request("later"))
        with pytest.raises(EngineError, match="closed"):
            await engine.update(1, lambda weights: None)
        await engine.close()

    run(kind, body)


def test_a_malformed_request_is_refused_and_the_engine_goes_on(kind: str) -> None:
    async def body(engine: Engine) -> None:
        with pytest.raises(DataError):
            await engine.agenerate(request("empty", prompt=()))
        with pytest.raises(DataError, match="temperature"):
            await engine.agenerate(request("cold", temperature=0.0))
        assert len((await engine.agenerate(request("good"))).output_tokens) == 8

    run(kind, body)


def test_a_listener_hears_the_tokens_of_the_answer_as_they_are_sampled(kind: str) -> None:
    async def body(engine: Engine) -> None:
        heard: list[int] = []
        half = asyncio.Event()

        def listener(before: int, output: Output) -> None:
            assert before == len(heard)
            assert len(output.tokens) == len(output.logprobs) == len(output.versions)
            heard.extend(output.tokens.tolist())
            half.set()

        flight = asyncio.create_task(engine.agenerate(request(max_new_tokens=200), listener))
        await half.wait()
        assert not flight.done(), "the first tokens are heard before the last are sampled"
        late: list[int] = []
        await engine.agenerate(request(max_new_tokens=200), lambda before, output: late.append(before))
        answer = (await flight).output_tokens.tolist()
        assert answer[: len(heard)] == heard
        assert all(before > 0 for before in late), "who joins late hears where it stands"
        again: list[int] = []
        await engine.agenerate(request(), lambda before, output: again.append(before))
        assert again[:1] == [0], "a rid that is used anew is told from its beginning"

    run(kind, body)


def test_the_listener_of_an_aborted_request_hears_nothing_of_the_next(kind: str) -> None:
    async def body(engine: Engine) -> None:
        heard: list[int] = []
        flight = asyncio.create_task(
            engine.agenerate(request(max_new_tokens=900), lambda before, output: heard.append(before))
        )
        await asyncio.sleep(0)
        await engine.abort(["r"])
        await flight
        count = len(heard)
        await engine.agenerate(request(max_new_tokens=5))
        assert len(heard) == count

    run(kind, body)
