"""LAW 12. The gradient is the same for every data-parallel size, accumulation, micro-batch and packing.

Data-parallel ranks are played one after another: each adds up its own bins with the shared weights.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from astraflow.core.model import Decoder, new_model
from astraflow.train_worker.algorithms.aggregation import LossAggregation, aggregate, token_weights
from astraflow.train_worker.algorithms.losses import ppo_loss
from astraflow.train_worker.config import OptimizerConfig
from astraflow.train_worker.engine.base import TokenOutputs
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.packed_rows import PackedRows
from astraflow.train_worker.packing import micro_batches

LENGTHS = [7, 3, 12, 5, 5, 9, 2, 11]
LONG_MAX = 12


def rows() -> PackedRows:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor(LENGTHS)
    total = int(lengths.sum())
    packed = PackedRows(
        lengths,
        torch.randint(0, 60, (total,), generator=generator),
        torch.rand(total, generator=generator) < 0.6,
        {
            "advantages": torch.randn(total, generator=generator),
            "behaviour_logprobs": torch.full((total,), -4.0) + 0.3 * torch.randn(total, generator=generator),
        },
    )
    packed.mask[packed.cu_seqlens[:-1]] = False
    return packed


def loss(part: PackedRows, outputs: TokenOutputs) -> torch.Tensor:
    streams = part.streams
    policy = ppo_loss(outputs.logprobs, streams["behaviour_logprobs"], streams["advantages"], part.mask)
    return policy.loss - 0.01 * outputs.entropy


def step(how: LossAggregation, max_tokens: int, order: list[int] | None = None) -> tuple[float, Decoder]:
    packed = rows()
    groups = torch.arange(len(LENGTHS)) // 2
    if order is not None:
        packed, groups = packed.select(order), groups[order]
    decoder = new_model("tiny-0.2m", seed=5)
    engine = NativeEngine(decoder, OptimizerConfig(gradient_clipping=1e9), 1, max_tokens_per_mb=max_tokens)
    weights = token_weights(packed.mask, packed.cu_seqlens, how, groups, 10.0)
    return engine.train_step(packed, weights, loss).loss, decoder


def assert_same_gradients(left: Decoder, right: Decoder) -> None:
    for (name, a), (_, b) in zip(left.named_parameters(), right.named_parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, atol=2e-6, rtol=1e-3, msg=partial("{}: {}".format, name))


@pytest.mark.parametrize("how", ["token", "sequence", "prompt", "constant"])
@pytest.mark.parametrize("max_tokens", [LONG_MAX, 20, 31])
def test_micro_batches(how: LossAggregation, max_tokens: int) -> None:
    whole, decoder = step(how, 1000)
    cut, other = step(how, max_tokens)
    assert cut == pytest.approx(whole, abs=1e-6)
    assert_same_gradients(decoder, other)


def test_order_of_rows() -> None:
    whole, decoder = step("sequence", 1000)
    shuffled, other = step("sequence", 25, [5, 2, 7, 0, 1, 6, 4, 3])
    assert shuffled == pytest.approx(whole, abs=1e-6)
    assert_same_gradients(decoder, other)


@pytest.mark.parametrize("dp_size", [2, 3])
def test_data_parallel_sizes(dp_size: int) -> None:
    packed = rows()
    weights = token_weights(packed.mask, packed.cu_seqlens, "sequence")
    _, expected = step("sequence", 1000)
    decoder = new_model("tiny-0.2m", seed=5)
    engine = NativeEngine(decoder, OptimizerConfig(), 1)
    for bins in micro_batches(LENGTHS, 15, dp_size):
        for items in bins:
            if items:
                part = packed.select(items)
                outputs = engine.score(part)
                aggregate(loss(part, outputs), weights[packed.token_index(items)]).backward()
    assert_same_gradients(expected, decoder)


def test_packing_equals_one_row_at_a_time() -> None:
    packed = rows()
    engine = NativeEngine(new_model("tiny-0.2m", seed=5), OptimizerConfig(), 1)
    together = engine.forward(packed)
    for row in range(len(LENGTHS)):
        alone = engine.forward(packed.select([row]))
        index = packed.token_index([row])
        torch.testing.assert_close(together.logprobs[index], alone.logprobs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(together.entropy[index], alone.entropy, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("max_tokens", [14, 30, 1000])
def test_shared_prompts(max_tokens: int) -> None:
    """Rows of one prompt share its computation; alone in their micro-batches they cannot."""
    generator = torch.Generator().manual_seed(7)
    prompts = [torch.randint(0, 60, (length,), generator=generator) for length in (6, 6, 4)]
    answers = [torch.randint(0, 60, (length,), generator=generator) for length in (3, 8, 1, 2, 5, 4)]
    ids = [torch.cat([prompts[i // 2], answer]) for i, answer in enumerate(answers)]
    lengths = torch.tensor([len(row) for row in ids])
    mask = torch.cat([torch.arange(len(row)) >= len(prompts[i // 2]) for i, row in enumerate(ids)])
    total = int(lengths.sum())
    streams = {"advantages": torch.randn(total, generator=generator), "behaviour_logprobs": torch.full((total,), -4.0)}
    packed = PackedRows(lengths, torch.cat(ids), mask, streams).check()
    weights = token_weights(mask, packed.cu_seqlens, "sequence")

    alone = new_model("tiny-0.2m", seed=5)
    scored = NativeEngine(alone, OptimizerConfig(), 1)
    for row in range(len(ids)):
        part = packed.select([row])
        aggregate(loss(part, scored.score(part)), weights[packed.token_index([row])]).backward()
    together = new_model("tiny-0.2m", seed=5)
    engine = NativeEngine(together, OptimizerConfig(gradient_clipping=1e9), 1, max_tokens_per_mb=max_tokens)
    engine.train_step(packed, weights, loss)
    assert_same_gradients(alone, together)
