"""Real trajectories for the benchmark of weights: what AdamW at reinforcement-learning rates changes in bfloat16.

The loss is a policy gradient with advantages ±1 on random tokens. Its direction matters little here: after Adam's
normalisation a step moves each weight by about the learning rate, and whether that crosses a rounding boundary of
bfloat16 depends on the weight's size.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from astraflow.core.model import (
    PRESETS,
    Decoder,
    load_model,
    named_weights,
    new_model,
    packed_attention,
    packed_positions,
)
from astraflow.core.weight_manager.delta import encode_delta
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import buffer_length
from astraflow.core.weight_manager.tensors import WireBuffer, describe

WARM_UP, STEPS = 3, 2
SEQUENCES, LENGTH = 4, 32
RATES = (1e-6, 5e-6, 1e-5)


class TrajectoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The last of a few optimiser steps."""

    learning_rate: float
    density: float
    """Share of bfloat16 elements that a step changed."""
    changed: int
    delta_bytes: int
    bytes_per_change: float
    encode_gb_s: float
    """Compare and encode, in gigabytes of model a second."""


def measure(model: str, progress: Any) -> list[dict[str, Any]]:
    """A preset's name or a Hugging Face directory; a row for each learning rate."""
    rows = []
    for rate in RATES:
        decoder = new_model(model) if model in PRESETS else load_model(Path(model), "float32")[0]
        figures = _trajectory(decoder, rate)
        rows.append(msgspec.to_builtins(figures))
        progress(
            f"{model} at lr {rate:g}: {100 * figures.density:.2f}% of elements change per step, "
            f"{figures.bytes_per_change:.2f} bytes a change, diff+encode {figures.encode_gb_s:.1f} GB/s"
        )
    return rows


def _trajectory(decoder: Decoder, rate: float) -> TrajectoryFigures:
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    params = dict(named_weights(decoder))
    layout = describe(params, "bfloat16")
    halves = [bytearray(buffer_length(layout)) for _ in range(2)]
    buffers = [WireBuffer(layout, memoryview(half)) for half in halves]
    for step in range(WARM_UP + STEPS):
        buffers[step % 2].write(params)
        optimizer.zero_grad()
        torch.autograd.backward(_loss(decoder, generator))
        optimizer.step()
    last = (WARM_UP + STEPS) % 2
    buffers[last].write(params)
    before, after = memoryview(halves[1 - last]), memoryview(halves[last])
    base, target = build_manifest("bench", 0, layout, before), build_manifest("bench", 1, layout, after)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        delta = encode_delta(base, target, before, after)
        seconds.append(time.perf_counter() - started)
    assert delta is not None
    return TrajectoryFigures(
        learning_rate=rate,
        density=delta.changed / (len(after) // 2),
        changed=delta.changed,
        delta_bytes=delta.length,
        bytes_per_change=delta.length / max(delta.changed, 1),
        encode_gb_s=len(after) / min(seconds) / 1e9,
    )


def _loss(decoder: Decoder, generator: torch.Generator) -> torch.Tensor:
    ids = torch.randint(decoder.config.vocab_size, (SEQUENCES * LENGTH,), generator=generator)
    borders = torch.arange(0, SEQUENCES * LENGTH + 1, LENGTH)
    hidden = decoder(ids, packed_positions(borders), packed_attention(borders))
    logprobs = decoder.logits(hidden).float().log_softmax(-1)[:-1].gather(1, ids[1:, None])
    advantages = torch.where(torch.rand(SEQUENCES, generator=generator) < 0.5, 1.0, -1.0).repeat_interleave(LENGTH)
    return -(logprobs.squeeze(1) * advantages[:-1]).mean()
