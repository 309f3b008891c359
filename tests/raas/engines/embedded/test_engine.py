"""The embedded engine's own promises; what it shares with the others is in tests/contracts/test_engine.py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse, StopReason
from astraflow.core.model import Decoder, new_model, packed_attention, packed_positions, save_model
from astraflow.core.text import tiny_tokenizer
from astraflow.errors import EngineError
from astraflow.raas.engines.embedded.bench import measure_decode
from astraflow.raas.engines.embedded.engine import EmbeddedEngine

GREEDY = GenerationHyperparameters(greedy=True, max_new_tokens=12, ignore_eos=True)


def request(rid: str, prompt: list[int] | np.ndarray, config: GenerationHyperparameters = GREEDY) -> ModelRequest:
    return ModelRequest(rid=rid, input_ids=np.array(prompt, np.int32), gconfig=config)


def run(engine_of: Callable[[], EmbeddedEngine], body: Callable[[EmbeddedEngine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        engine = engine_of()
        try:
            return await asyncio.wait_for(body(engine), 60)
        finally:
            await engine.close()

    return asyncio.run(main())


def continue_greedily(decoder: Decoder, prompt: list[int], tokens: int) -> list[int]:
    """The same without a cache: the whole sequence anew for each token."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(tokens):
            borders = torch.tensor([0, len(ids)])
            hidden = decoder(torch.tensor(ids), packed_positions(borders), packed_attention(borders))
            ids.append(int(decoder.logits(hidden[-1:]).argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_batching_prefix_sharing_and_moving_rows_change_no_token(rows: int) -> None:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(7, 100, n).tolist() for n in (1, 2, 9, 30, 80)]
    lengths = [3, 12, 7, 40, 1]

    async def body(engine: EmbeddedEngine) -> list[ModelResponse]:
        return list(
            await asyncio.gather(
                *(
                    engine.agenerate(request(f"{p}-{length}", prompts[p], GREEDY.new(max_new_tokens=length)))
                    for length in lengths
                    for p in range(len(prompts))
                )
            )
        )

    answers = run(lambda: EmbeddedEngine("m", new_model("tiny-0.2m", seed=4), max_running_requests=rows), body)
    reference = [continue_greedily(new_model("tiny-0.2m", seed=4), prompt, max(lengths)) for prompt in prompts]
    for number, answer in enumerate(answers):
        expected = reference[number % len(prompts)][: lengths[number // len(prompts)]]
        assert answer.output_tokens.tolist() == expected


def test_weights_written_by_name_are_what_is_computed() -> None:
    source = dict(new_model("tiny-0.2m", seed=8).named_parameters())

    async def body(engine: EmbeddedEngine) -> list[int]:
        def install(weights: Any) -> None:
            for name, tensor in weights.items():
                tensor.copy_(source[name])

        await engine.update(1, install)
        return (await engine.agenerate(request("r", [3, 4, 5]))).output_tokens.tolist()

    tokens = run(lambda: EmbeddedEngine("m", new_model("tiny-0.2m", seed=1)), body)
    assert tokens == continue_greedily(new_model("tiny-0.2m", seed=8), [3, 4, 5], 12)


def test_a_seed_reproduces_a_request_in_other_company() -> None:
    seeded = GenerationHyperparameters(seed=3, max_new_tokens=20, ignore_eos=True)

    async def body(engine: EmbeddedEngine) -> list[list[int]]:
        alone = await engine.agenerate(request("alone", [3, 9], seeded))
        crowd = [request(f"{i}", [3, 9 + i], GenerationHyperparameters(max_new_tokens=5 + i)) for i in range(6)]
        *_, again = await asyncio.gather(*(engine.agenerate(one) for one in [*crowd, request("again", [3, 9], seeded)]))
        return [alone.output_tokens.tolist(), again.output_tokens.tolist()]

    alone, again = run(lambda: EmbeddedEngine("m", new_model("tiny-0.2m"), max_running_requests=4), body)
    assert alone == again


def test_weights_that_are_no_numbers_fail_the_request_and_leave_nothing_behind() -> None:
    async def body(engine: EmbeddedEngine) -> list[int]:
        kept: dict[str, torch.Tensor] = {}

        def break_weights(weights: Any) -> None:
            kept.update({name: tensor.clone() for name, tensor in weights.items()})
            weights["model.layers.0.input_layernorm.weight"].fill_(float("nan"))

        def repair(weights: Any) -> None:
            for name, tensor in weights.items():
                tensor.copy_(kept[name])

        await engine.update(1, break_weights)
        failed = await asyncio.gather(
            *(engine.agenerate(request(f"broken{i}", [3, 4, 5, 6, 7])) for i in range(4)), return_exceptions=True
        )
        assert all(isinstance(one, EngineError) and "version 1" in str(one) for one in failed)
        await engine.update(2, repair)
        return (await engine.agenerate(request("whole", [3, 4]))).output_tokens.tolist()

    tokens = run(lambda: EmbeddedEngine("m", new_model("tiny-0.2m", seed=1), max_running_requests=4), body)
    assert tokens == continue_greedily(new_model("tiny-0.2m", seed=1), [3, 4], 12)


def test_a_step_that_fails_ends_its_requests_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: EmbeddedEngine) -> None:
        step, calls = engine._runner.step, iter(range(1000))

        def fail_once(rows: int, version: int) -> list[int]:
            if next(calls) == 0:
                raise MemoryError("no room")
            return step(rows, version)

        monkeypatch.setattr(engine._runner, "step", fail_once)
        with pytest.raises(EngineError, match="MemoryError: no room"):
            await engine.agenerate(request("first", [3, 4]))
        assert len((await engine.agenerate(request("second", [3, 4]))).output_tokens) == 12

    run(lambda: EmbeddedEngine("m", new_model("tiny-0.2m")), body)


def test_a_thread_that_dies_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    died: list[object] = []

    async def body(engine: EmbeddedEngine) -> None:
        def fail(*_: object) -> None:
            raise MemoryError("no room at all")

        monkeypatch.setattr(engine._runner, "step", fail)
        monkeypatch.setattr(engine._runner, "reset", fail)
        monkeypatch.setattr(threading, "excepthook", lambda caught: died.append(caught.exc_type))
        request_, update = engine.agenerate(request("r", [3, 4])), engine.update(1, lambda weights: None)
        outcomes = await asyncio.gather(request_, update, return_exceptions=True)
        assert isinstance(outcomes[0], EngineError)
        with pytest.raises(EngineError, match="closed"):
            await engine.agenerate(request("later", [3, 4]))
        await asyncio.to_thread(engine._thread.join, 30)
        assert died == [MemoryError]

    run(lambda: EmbeddedEngine("m", new_model("tiny-0.2m")), body)


def test_what_cannot_be_served_is_refused_by_name() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        with pytest.raises(EngineError, match="vocabulary"):
            await engine.agenerate(request("ids", [3, 103]))
        with pytest.raises(EngineError, match="no room in a context of 32"):
            await engine.agenerate(request("long", [3] * 32))
        with pytest.raises(EngineError, match="stop_token_ids"):
            engine.supports(GREEDY.new(stop_token_ids=(103,)))
        with pytest.raises(EngineError, match=r"gconfig\.stop"):
            engine.supports(GREEDY.new(stop=("x",)))
        full = await engine.agenerate(request("full", [3] * 31))
        assert (len(full.output_tokens), full.stop_reason) == (1, StopReason.LENGTH)

    run(lambda: EmbeddedEngine("m", new_model("tiny-0.2m"), context_length=32), body)


def test_end_tokens_of_configuration_tokenizer_and_caller_are_joined(tmp_path: Path) -> None:
    decoder = new_model("tiny-0.2m")
    tiny_tokenizer().save(tmp_path / "tokenizer")
    save_model(tmp_path, decoder, decoder.config, tmp_path / "tokenizer")

    async def body(engine: EmbeddedEngine) -> frozenset[int]:
        return engine._eos

    assert run(lambda: EmbeddedEngine.open("m", tmp_path, eos_token_ids=[50]), body) == {6, 50}


def test_bfloat16_runs() -> None:
    async def body(engine: EmbeddedEngine) -> ModelResponse:
        return await engine.agenerate(
            request("r", [3, 4, 5], GenerationHyperparameters(max_new_tokens=9, ignore_eos=True))
        )

    answer = run(lambda: EmbeddedEngine("m", new_model("tiny-0.2m").to(torch.bfloat16)), body)
    assert len(answer.check().output_tokens) == 9


def test_the_decode_measurement_reports_its_rate() -> None:
    measured = measure_decode("tiny-0.2m", concurrency=2, tokens=8)
    assert measured["tokens_per_s"] == pytest.approx(16 / measured["seconds"])
    assert measured["parameters"] == sum(one.numel() for one in new_model("tiny-0.2m").parameters())
