"""LAW 15. With an unchanged policy every importance ratio is 1 within numerical tolerance, at any temperature.

Here across the seam: tokens sampled by the embedded engine through its KV cache and shared prefills, logprobs
recomputed by the packed forward that the trainer uses, at the rollout temperature.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from astraflow.core.data import GenerationHyperparameters, ModelRequest, ModelResponse
from astraflow.core.model import Decoder, new_model, packed_attention, packed_positions
from astraflow.raas.engines.embedded.engine import EmbeddedEngine


def sharpened(preset: str) -> Decoder:
    """A model whose distributions are far from uniform, so that a wrong temperature or position would show."""
    decoder = new_model(preset, seed=5)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(3.0)
    return decoder


def rollout(temperature: float) -> list[ModelResponse]:
    async def main() -> list[ModelResponse]:
        engine = EmbeddedEngine("m", sharpened("tiny-1m"), max_running_requests=6, seed=2)
        rng = np.random.default_rng(1)
        prompts = [rng.integers(7, 100, n).astype(np.int32) for n in (1, 5, 17, 70)]
        try:
            return list(
                await asyncio.gather(
                    *(
                        engine.agenerate(
                            ModelRequest(
                                rid=f"{group}-{sample}",
                                input_ids=prompt,
                                gconfig=GenerationHyperparameters(
                                    temperature=temperature, max_new_tokens=10 + 9 * sample
                                ),
                            )
                        )
                        for group, prompt in enumerate(prompts)
                        for sample in range(4)
                    )
                )
            )
        finally:
            await engine.close()

    return asyncio.run(main())


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.7])
def test_the_trainers_packed_forward_gives_the_engines_logprobs(temperature: float) -> None:
    responses = rollout(temperature)
    rows = [np.concatenate([one.input_tokens, one.output_tokens]) for one in responses]
    cu_seqlens = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    ids = torch.from_numpy(np.concatenate(rows)).long()
    decoder = sharpened("tiny-1m")
    with torch.no_grad():
        logits = decoder.logits(decoder(ids, packed_positions(cu_seqlens), packed_attention(cu_seqlens)))
    logprobs = (logits / temperature).log_softmax(-1)[:-1].gather(1, ids[1:, None]).view(-1)
    for response, start, end in zip(responses, cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        sampled = logprobs[start + len(response.input_tokens) - 1 : end - 1]
        ratios = (sampled - torch.from_numpy(response.output_logprobs)).exp()
        assert len(ratios) == len(response.output_tokens) > 0
        assert (ratios - 1).abs().max() < 1e-3
