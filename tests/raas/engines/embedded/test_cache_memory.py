"""Memory of keys and values follows what runs, and stays within its bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest
from astraflow.core.model import Decoder, ModelConfig, new_model
from astraflow.errors import ConfigError
from astraflow.raas.engines.embedded.engine import EmbeddedEngine


def request(rid: str, prompt: int, tokens: int) -> ModelRequest:
    ids = np.arange(prompt, dtype=np.int32) * (1 + len(rid) % 5) % 90 + 7
    return ModelRequest(
        rid=rid,
        input_ids=ids,
        gconfig=GenerationHyperparameters(max_new_tokens=tokens, ignore_eos=True, greedy=True),
    )


def run(engine_of: Callable[[], EmbeddedEngine], body: Callable[[EmbeddedEngine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        engine = engine_of()
        try:
            return await asyncio.wait_for(body(engine), 60)
        finally:
            await engine.close()

    return asyncio.run(main())


def test_one_long_prompt_takes_the_memory_of_a_few_rows_not_of_all_that_may_run() -> None:
    async def body(engine: EmbeddedEngine) -> None:
        await engine.agenerate(request("long", 700, 2))
        store = engine._runner._cache._store
        of_one = store[:, :, :1, :, :702].numel()
        assert store.numel() <= 12 * of_one, f"{store.numel() / of_one:.0f} times what it needs"

    run(lambda: EmbeddedEngine("m", new_model("tiny-0.2m"), max_running_requests=64), body)


def test_a_context_that_no_memory_holds_is_refused_at_opening() -> None:
    config = ModelConfig(
        model_type="llama",
        vocab_size=20,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=32,
        max_position_embeddings=2**17,
    )

    async def opened(context_length: int | None) -> int:
        engine = EmbeddedEngine("m", Decoder(config), max_running_requests=1, context_length=context_length)
        await engine.close()
        return engine.context_length

    with pytest.raises(ConfigError, match=r"raas\.models\.m\.embedded: .* context_length = 131072 tokens take 8 GiB"):
        asyncio.run(opened(None))
    assert asyncio.run(opened(2**16)) == 2**16


@pytest.mark.parametrize("seed", range(3))
def test_whatever_arrives_is_answered_the_same_within_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.choice([2, 5, 30, 100, 150])), int(rng.integers(1, 40))) for _ in range(20)] + [(5, 20)] * 4

    def engine_of(positions: int) -> EmbeddedEngine:
        decoder = new_model("tiny-0.2m", seed=4)
        config = decoder.config
        limit = positions * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
        return EmbeddedEngine("m", decoder, max_running_requests=16, context_length=256, kv_cache_bytes=limit)

    async def answers(engine: EmbeddedEngine) -> tuple[list[list[int]], int]:
        runner, sizes = engine._runner, []
        step = runner.step

        def watched(rows: int, version: int) -> list[int]:
            ended = step(rows, version)
            sizes.append(int(np.prod(runner.cache_shape)))
            return ended

        runner.step = watched  # type: ignore[method-assign]
        found = await asyncio.gather(*(engine.agenerate(request(f"{i}", *one)) for i, one in enumerate(shapes)))
        engine._scheduler.validate()
        return [answer.output_tokens.tolist() for answer in found], max(sizes)

    free, _ = run(lambda: engine_of(2**20), answers)
    for positions in (256, 700):
        bound, largest = run(lambda positions=positions: engine_of(positions), answers)  # type: ignore[misc]
        assert bound == free
        assert largest <= positions
