"""LAW 23. A token sampled across a swap carries the version that sampled it, stamped by the engine."""

from __future__ import annotations

import asyncio

import numpy as np
import torch

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse
from astraflow.core.model import new_model
from astraflow.raas.engines.base import Weights
from astraflow.raas.engines.embedded.engine import EmbeddedEngine


def flatten_distribution(weights: Weights) -> None:
    """A final norm of zero: every token has the same probability, so logprobs show which weights sampled."""
    weights["model.norm.weight"].zero_()


def test_versions_change_exactly_where_the_logprobs_show_the_new_weights() -> None:
    decoder = new_model("tiny-0.2m", seed=2)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(3.0)

    async def main() -> ModelResponse:
        engine = EmbeddedEngine("m", decoder, max_running_requests=4)

        def ask(rid: str, length: int) -> asyncio.Task[ModelResponse]:
            config = GenerationHyperparameters(max_new_tokens=length, ignore_eos=True)
            request = ModelRequest(rid=rid, input_ids=np.array([3, 9, 20]), gconfig=config)
            return asyncio.create_task(engine.agenerate(request))

        try:
            flight = ask("long", 300)
            await ask("short", 3)
            await engine.update(7, flatten_distribution)
            return await flight
        finally:
            await engine.close()

    response = asyncio.run(main())
    uniform = np.isclose(response.output_logprobs, -np.log(decoder.config.vocab_size), atol=1e-5)
    assert set(response.output_versions.tolist()) == {0, 7}
    assert uniform[response.output_versions == 7].all()
    assert not uniform[response.output_versions == 0].all()
    assert not uniform[0]
