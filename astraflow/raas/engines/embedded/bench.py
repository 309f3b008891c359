"""Decode speed of the embedded engine, measured through its public face."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np

from astraflow.core.data import GenerationHyperparameters, ModelRequest
from astraflow.core.model import PRESETS, load_model, new_model
from astraflow.raas.engines.embedded.engine import EmbeddedEngine

PROMPT_TOKENS = 16


def measure_decode(model: str | Path, concurrency: int, tokens: int = 128, threads: int = 1) -> dict[str, Any]:
    """Return tokens per second while `concurrency` requests of distinct prompts generate `tokens` tokens each.

    `model` is a preset's name (new weights) or a Hugging Face directory. A first, shorter round warms up.
    """
    decoder = new_model(str(model)) if str(model) in PRESETS else load_model(model)[0]
    return asyncio.run(_measure(decoder, str(model), concurrency, tokens, threads))


async def _measure(decoder: Any, name: str, concurrency: int, tokens: int, threads: int) -> dict[str, Any]:
    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    engine = EmbeddedEngine("bench", decoder, max_running_requests=concurrency, threads=threads)
    rng = np.random.default_rng(0)

    async def round_of(length: int) -> float:
        config = GenerationHyperparameters(max_new_tokens=length, ignore_eos=True)
        prompts = rng.integers(0, decoder.config.vocab_size, (concurrency, PROMPT_TOKENS), dtype=np.int32)
        start = time.perf_counter()
        requests = (
            ModelRequest(rid=f"{length}-{i}", input_ids=prompt, gconfig=config) for i, prompt in enumerate(prompts)
        )
        await asyncio.gather(*(engine.agenerate(request) for request in requests))
        return time.perf_counter() - start

    try:
        await round_of(4)
        seconds = await round_of(tokens)
    finally:
        await engine.close()
    return {
        "model": name,
        "parameters": parameters,
        "concurrency": concurrency,
        "tokens": tokens,
        "threads": threads,
        "seconds": seconds,
        "tokens_per_s": concurrency * tokens / seconds,
    }
