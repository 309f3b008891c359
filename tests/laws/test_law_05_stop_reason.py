"""LAW 5. Why a generation ended comes from the engine and the full set of end tokens, never from its padded width."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse, StopReason
from astraflow.core.model import new_model
from astraflow.core.text import tiny_tokenizer
from astraflow.raas.engines.embedded.engine import EmbeddedEngine

PROMPT = np.array([3, 20, 30, 5], np.int32)


def generate(*configs: GenerationHyperparameters, eos_token_ids: tuple[int, ...] = ()) -> list[ModelResponse]:
    """One prompt under several settings, all in flight together."""

    async def main() -> list[ModelResponse]:
        engine = EmbeddedEngine(
            "m", new_model("tiny-0.2m", seed=3), eos_token_ids=eos_token_ids, tokenizer=tiny_tokenizer()
        )
        try:
            requests = (ModelRequest(rid=str(i), input_ids=PROMPT, gconfig=one) for i, one in enumerate(configs))
            return list(await asyncio.gather(*(engine.agenerate(request) for request in requests)))
        finally:
            await engine.close()

    return asyncio.run(main())


FREE = GenerationHyperparameters(max_new_tokens=24, ignore_eos=True, seed=4)


@pytest.fixture(scope="module")
def sampled() -> list[int]:
    """What is sampled where nothing ends the generation."""
    tokens: list[int] = generate(FREE)[0].output_tokens.tolist()
    return tokens


def test_every_end_token_ends_it_and_the_last_place_is_no_exception(sampled: list[int]) -> None:
    at = next(i for i, token in enumerate(sampled) if i > 3 and token not in sampled[:i])
    listening = FREE.new(ignore_eos=False)
    own, listed, last, before = (
        generate(listening, eos_token_ids=(sampled[at],))[0],
        *generate(
            FREE.new(stop_token_ids=(sampled[at],)),
            FREE.new(stop_token_ids=(sampled[at],), max_new_tokens=at + 1),
            FREE.new(stop_token_ids=(sampled[at],), max_new_tokens=at),
        ),
    )
    for response in (own, listed, last):
        assert response.output_tokens.tolist() == sampled[: at + 1]
        assert response.stop_reason is StopReason.STOP
    assert (before.output_tokens.tolist(), before.stop_reason) == (sampled[:at], StopReason.LENGTH)


def test_equal_widths_do_not_mean_equal_reasons(sampled: list[int]) -> None:
    end = sampled[-1]
    stopped, cut = generate(
        FREE.new(stop_token_ids=(end,), min_new_tokens=0), FREE.new(max_new_tokens=sampled.index(end) + 1)
    )
    assert stopped.output_tokens.tolist() == cut.output_tokens.tolist()
    assert (stopped.stop_reason, cut.stop_reason) == (StopReason.STOP, StopReason.LENGTH)


def test_a_stop_string_across_tokens_ends_it_and_is_kept(sampled: list[int]) -> None:
    text = tiny_tokenizer().decode(sampled[6:9], skip_special_tokens=False)
    for budget in (24, 9):
        response = generate(FREE.new(stop=("never written", text), max_new_tokens=budget))[0]
        written = tiny_tokenizer().decode(response.output_tokens, skip_special_tokens=False)
        assert response.stop_reason is StopReason.STOP
        assert written.endswith(text)
        assert text not in written[:-1]
