"""LAW 21. Prefix caches are keyed by version as well as text."""

from __future__ import annotations

import asyncio

import numpy as np
import torch

from astraflow.core.data import GenerationHyperparameters, ModelRequest
from astraflow.core.model import named_weights, new_model
from astraflow.raas.engines.base import Weights
from astraflow.raas.engines.embedded.engine import EmbeddedEngine

GREEDY = GenerationHyperparameters(greedy=True, max_new_tokens=6, ignore_eos=True)
PROMPT = np.arange(10, 40, dtype=np.int32)


def ask(rid: str) -> ModelRequest:
    return ModelRequest(rid=rid, input_ids=PROMPT, gconfig=GREEDY)


def test_a_prompt_cached_under_one_version_is_computed_anew_under_the_next() -> None:
    new = dict(named_weights(new_model("tiny-0.2m", seed=9)))

    def install(weights: Weights) -> None:
        for name, tensor in weights.items():
            tensor.copy_(new[name])

    async def main() -> tuple[np.ndarray, np.ndarray]:
        engine = EmbeddedEngine("m", new_model("tiny-0.2m", seed=1), max_running_requests=4)
        fresh = EmbeddedEngine("m", new_model("tiny-0.2m", seed=9), max_running_requests=4)
        try:
            await engine.agenerate(ask("old"))  # its prompt stays in a free row
            await engine.update(1, install)
            swapped = await asyncio.gather(*(engine.agenerate(ask(f"new{i}")) for i in range(3)))
            expected = await fresh.agenerate(ask("fresh"))
        finally:
            await engine.close()
            await fresh.close()
        assert all(one.output_tokens.tolist() == expected.output_tokens.tolist() for one in swapped)
        return np.stack([one.output_logprobs for one in swapped]), expected.output_logprobs

    swapped, expected = asyncio.run(main())
    torch.testing.assert_close(torch.from_numpy(swapped), torch.from_numpy(expected).expand(3, -1), atol=1e-5, rtol=0)
