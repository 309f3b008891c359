"""POST /generate."""

from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest, decode, encode
from astraflow.core.protocol import messages as m
from astraflow.errors import CallerError, ConflictError, DataError, PeerError
from astraflow.raas.generate import generate
from tests.raas.conftest import END, Harness


def request(**changes: Any) -> m.GenerateRequest:
    return m.GenerateRequest(rid="r", input_ids=np.array([20, 21], np.int32), **changes)


def long_answer(asked: ModelRequest) -> list[int]:
    """30 tokens that count on from the prompt, so that a continuation goes on where it was cut."""
    left = 30 - (len(asked.input_ids) - 2)
    return [*range(20 + 30 - left, 50), END]


LONG = GenerationHyperparameters(max_new_tokens=64)


async def stream_of(h: Harness) -> AsyncGenerator[m.GeneratedPart, None]:
    stream = await generate(h.service.router, request(gconfig=LONG, stream=True))
    assert isinstance(stream, AsyncGenerator)
    return stream


def test_token_ids_in_token_ids_and_versions_out(raas) -> None:
    async def body(h) -> None:
        await h.publish(3)
        response = await h.client.generate(request())
        assert response.output_versions.tolist() == [3, 3, 3]
        assert response.stop_reason == "stop"

    raas(body)


def test_before_a_verified_version_it_is_a_conflict(raas) -> None:
    async def body(h) -> None:
        with pytest.raises(ConflictError, match="model0 serves no verified version"):
            await h.client.generate(request())

    raas(body)


def test_what_the_engine_cannot_honour_is_the_callers_error(raas) -> None:
    async def body(h) -> None:
        await h.publish(0)
        with pytest.raises(CallerError, match=r"gconfig\.top_k"):
            await h.client.generate(request(gconfig=GenerationHyperparameters(top_k=3)))
        with pytest.raises(CallerError, match="known: model0"):
            await h.client.generate(request(model_id="model9"))

    raas(body, unsupported=("top_k",))


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("top_k", GenerationHyperparameters(top_k=2**63)),
        ("max_new_tokens", GenerationHyperparameters(max_new_tokens=2**63, min_new_tokens=2**63)),
        ("temperature", GenerationHyperparameters(temperature=1e300)),
        ("stop", GenerationHyperparameters(stop=("",))),
        ("seed", GenerationHyperparameters(seed=-(2**63))),
    ],
)
def test_a_field_out_of_range_is_the_callers_error_and_named(raas, field, config) -> None:
    async def body(h) -> None:
        await h.publish(0)
        if field == "seed":  # the smallest that the wire carries: taken
            assert (await h.client.generate(request(gconfig=config))).stop_reason == "stop"
            return
        with pytest.raises(CallerError, match=rf"gconfig\.{field} = .* is out of range, expected"):
            await h.client.generate(request(gconfig=config))

    raas(body)


def test_a_task_asks_for_no_more_samples_than_a_group_may_have() -> None:
    order = m.SubmitRequest(tasks=[m.Task(task_id="t", group_id=0, data={}, n_samples=2**40)])
    with pytest.raises(DataError, match="n_samples"):
        decode(encode(order), m.SubmitRequest)


def test_a_stream_gives_the_same_tokens_part_by_part(raas) -> None:
    async def body(h) -> None:
        await h.publish(3)
        whole = await h.client.generate(request())
        parts = [part async for part in h.client.stream(request())]
        assert np.concatenate([part.output_tokens for part in parts]).tolist() == whole.output_tokens.tolist()
        assert np.concatenate([part.output_versions for part in parts]).tolist() == [3, 3, 3]
        assert sum(len(part.output_logprobs) for part in parts) == 3
        assert len(parts) > 1
        assert [part.stop_reason for part in parts] == [None] * (len(parts) - 1) + ["stop"]

    raas(body)


def test_a_stream_that_is_preempted_goes_on_without_a_gap_or_a_token_twice(raas) -> None:
    async def body(h) -> None:
        await h.publish(3)
        tokens: list[int] = []
        async for part in await stream_of(h):
            tokens += part.output_tokens.tolist()
            if len(tokens) == 10:
                await h.service.pause(m.PauseRequest(model_id="model0", mode="abort"))
                await h.service.resume(m.PauseRequest(model_id="model0"))
        assert tokens == [*range(20, 50), END]

    raas(body, script=long_answer)


def test_who_joins_a_request_under_way_gets_all_of_it(raas) -> None:
    async def body(h) -> None:
        await h.publish(3)
        first = await stream_of(h)
        tokens = (await anext(first)).output_tokens.tolist()
        second = await stream_of(h)
        joined = np.concatenate([part.output_tokens async for part in second]).tolist()
        async for part in first:
            tokens += part.output_tokens.tolist()
        assert tokens == joined == [*range(20, 50), END]
        assert h.engine.load().tokens_generated == 31

    raas(body, script=long_answer)


def test_who_stops_listening_ends_the_generation(raas) -> None:
    async def body(h) -> None:
        await h.publish(3)
        stream = await stream_of(h)
        await anext(stream)
        await stream.aclose()
        await h.engine.close()
        assert h.engine.load().tokens_generated < 31

    raas(body, script=long_answer)


def test_what_is_wrong_with_a_request_is_said_before_the_stream_begins(raas) -> None:
    async def body(h) -> None:
        with pytest.raises(ConflictError, match="serves no verified version"):
            _ = [part async for part in h.client.stream(request())]
        await h.publish(0)
        with pytest.raises(CallerError, match="known: model0"):
            _ = [part async for part in h.client.stream(request(model_id="model9"))]

    raas(body)


def test_a_failure_within_a_stream_is_its_last_frame(raas) -> None:
    async def body(h) -> None:
        await h.publish(0)
        with pytest.raises(PeerError, match="ends after 2 tokens without an end token"):
            _ = [part async for part in h.client.stream(request())]

    raas(body, script=lambda asked: [7, 8])
