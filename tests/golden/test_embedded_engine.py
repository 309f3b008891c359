"""Seeded golden values of decoder, sampling and engine: a change here is a change of what is computed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse
from astraflow.core.model import Decoder, ModelConfig
from astraflow.core.model.presets import initialise
from astraflow.raas.engines.embedded.engine import EmbeddedEngine

CONFIG = ModelConfig(
    model_type="qwen3",
    vocab_size=50,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    qk_norm=True,
    initializer_range=0.3,
)


def generate(gconfig: GenerationHyperparameters) -> ModelResponse:
    async def main() -> ModelResponse:
        decoder = Decoder(CONFIG)
        initialise(decoder, seed=7)
        engine = EmbeddedEngine("m", decoder, max_running_requests=2)
        try:
            return await engine.agenerate(ModelRequest(rid="r", input_ids=np.array([1, 2, 3]), gconfig=gconfig))
        finally:
            await engine.close()

    return asyncio.run(main())


GOLDEN = {
    "greedy": (
        GenerationHyperparameters(greedy=True, max_new_tokens=8),
        [22, 22, 22, 29, 29, 36, 36, 22],
        [-1.3684, -0.825, -0.9947, -1.2511, -1.1296, -0.6881, -1.0633, -1.8892],
    ),
    "sampled": (
        GenerationHyperparameters(seed=3, temperature=0.8, max_new_tokens=8),
        [1, 19, 26, 3, 22, 3, 22, 29],
        [-6.9589, -5.9097, -5.4426, -2.2605, -0.9715, -2.617, -1.1872, -0.3782],
    ),
    "nucleus": (
        GenerationHyperparameters(seed=3, temperature=1.5, top_p=0.8, top_k=20, max_new_tokens=8),
        [3, 3, 11, 3, 13, 3, 22, 33],
        [-1.6849, -1.6259, -1.697, -1.9687, -2.478, -1.8785, -2.6441, -1.8522],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_tokens_and_logprobs_are_the_recorded_ones(name: str) -> None:
    gconfig, tokens, logprobs = GOLDEN[name]
    response = generate(gconfig)
    assert response.output_tokens.tolist() == tokens
    np.testing.assert_allclose(response.output_logprobs, logprobs, atol=2e-4)
