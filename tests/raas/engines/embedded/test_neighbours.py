"""What is wrong with one request is its own end, never that of the requests beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse
from astraflow.core.model import PRESETS, new_model, save_model
from astraflow.core.text import tiny_tokenizer
from astraflow.errors import AstraFlowError, ConfigError, DataError, EngineError
from astraflow.raas.engines.embedded.engine import EmbeddedEngine

TOKENS = 150


def request(rid: str, **config: Any) -> ModelRequest:
    gconfig = GenerationHyperparameters(**{"max_new_tokens": TOKENS, "ignore_eos": True, **config})
    return ModelRequest(rid=rid, input_ids=np.array([3, 9, len(rid)], np.int32), gconfig=gconfig)


async def beside(engine: EmbeddedEngine, other: Callable[[], Awaitable[Any]]) -> tuple[list[Any], Any]:
    """Four answers, and what came of `other`, which was begun while they were generated."""
    running = asyncio.Event()
    good = [asyncio.create_task(engine.agenerate(request(f"g{i}"), lambda *_: running.set())) for i in range(4)]
    await running.wait()
    outcomes: list[Any] = [*await asyncio.gather(other(), return_exceptions=True)]
    return await asyncio.gather(*good, return_exceptions=True), outcomes[0]


def run(body: Callable[[EmbeddedEngine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        engine = EmbeddedEngine("m", new_model("tiny-0.2m", seed=3), tokenizer=tiny_tokenizer())
        try:
            return await asyncio.wait_for(body(engine), 60)
        finally:
            await engine.close()

    return asyncio.run(main())


def assert_whole(answers: list[Any]) -> None:
    ends = [len(one.output_tokens) if isinstance(one, ModelResponse) else repr(one) for one in answers]
    assert ends == [TOKENS] * len(answers)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("top_k", {"top_k": 2**63}),
        ("max_new_tokens", {"max_new_tokens": 2**63, "min_new_tokens": 2**63}),
        ("min_new_tokens", {"min_new_tokens": "1"}),
        ("max_tokens", {"max_tokens": 10.5}),
        ("seed", {"seed": 2**64}),
        ("seed", {"seed": -(2**63) - 1}),
        ("seed", {"seed": 1.5}),
        ("temperature", {"temperature": 1e300}),
        ("temperature", {"temperature": float("inf")}),
        ("top_p", {"top_p": "0.5"}),
        ("frequency_penalty", {"frequency_penalty": float("nan")}),
        ("stop", {"stop": ("\ud800",)}),
        ("stop", {"stop": (7,)}),
        ("stop_token_ids", {"stop_token_ids": (2.5,)}),
    ],
)
def test_a_request_out_of_range_is_refused_by_field_and_its_neighbours_go_on(
    field: str, change: dict[str, Any]
) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        answers, outcome = await beside(engine, lambda: engine.agenerate(request("bad", **change)))
        assert_whole(answers)
        assert isinstance(outcome, DataError)
        assert f"gconfig.{field} = " in str(outcome)

    run(body)


def test_a_request_that_cannot_be_placed_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        sampler = engine._runner._sampler
        place = sampler.place

        def fail(sequences: Any) -> None:
            if any(one.request.rid.startswith("bad") for one in sequences):
                raise MemoryError("no room")
            place(sequences)

        monkeypatch.setattr(sampler, "place", fail)
        for number in range(3):
            bad = request(f"bad{number}", frequency_penalty=1.0, temperature=0.5)
            answers, outcome = await beside(engine, lambda bad=bad: engine.agenerate(bad))  # type: ignore[misc]
            assert_whole(answers)
            assert isinstance(outcome, EngineError)
            assert "MemoryError: no room" in str(outcome)
        engine._scheduler.validate()
        uses = {use for use, count in sampler._uses.items() if count}
        assert not uses, "what was not placed asks for no more work"

    run(body)


@pytest.mark.parametrize("end", [-1, 103, 100_000])
def test_an_end_token_outside_the_vocabulary_is_refused_before_anything_is_generated(end: int, tmp_path: Path) -> None:
    """-1 would be the last token of the vocabulary, and end rows early; a larger one would end every row."""
    tiny_tokenizer().save(tmp_path)
    save_model(tmp_path, new_model("tiny-0.2m", vocab_size=103), PRESETS["tiny-0.2m"])
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [6, {end}]}}')

    async def opened() -> None:
        engine = EmbeddedEngine.open("m", tmp_path)
        try:
            answers = await asyncio.gather(
                *(engine.agenerate(request(f"{i}", ignore_eos=False)) for i in range(4)), return_exceptions=True
            )
        finally:
            await engine.close()
        raise AssertionError(f"it was opened, and gave {answers!r}"[:200])

    with pytest.raises(ConfigError, match=rf"end tokens \[{end}\] of m lie outside its vocabulary of 103"):
        asyncio.run(opened())


def test_where_every_token_ends_a_generation_none_can_be_forbidden() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        every = tuple(range(engine._vocab_size))
        answers, outcome = await beside(
            engine, lambda: engine.agenerate(request("bad", stop_token_ids=every, min_new_tokens=3))
        )
        assert_whole(answers)
        assert isinstance(outcome, AstraFlowError)
        assert "min_new_tokens" in str(outcome)

    run(body)
