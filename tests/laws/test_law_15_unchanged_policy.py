"""LAW 15. With an unchanged policy every importance ratio is 1 within numerical tolerance, at any temperature.

The trainer's side: its logprobs are those of the distribution softmax(logits / temperature) that tokens are drawn from.
"""

from __future__ import annotations

import pytest
import torch

from astraflow.core.model import new_model, packed_attention
from astraflow.train_worker.algorithms.mismatch import token_ratio
from astraflow.train_worker.config import OptimizerConfig
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.packed_rows import PackedRows


def sample(temperature: float) -> PackedRows:
    """A prompt of three tokens and five sampled ones, drawn one at a time from the model itself."""
    decoder = new_model("tiny-0.2m", seed=11)
    generator = torch.Generator().manual_seed(4)
    ids, logprobs = [3, 7, 9], [0.0, 0.0, 0.0]
    for _ in range(5):
        length = len(ids)
        with torch.no_grad():
            hidden = decoder(torch.tensor(ids), torch.arange(length), packed_attention(torch.tensor([0, length])))
            distribution = (decoder.logits(hidden[-1:]).squeeze(0) / temperature).log_softmax(-1)
        token = int(torch.multinomial(distribution.exp(), 1, generator=generator))
        ids.append(token)
        logprobs.append(float(distribution[token]))
    mask = torch.tensor([False] * 3 + [True] * 5)
    return PackedRows(torch.tensor([8]), torch.tensor(ids), mask, {"behaviour_logprobs": torch.tensor(logprobs)})


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_ratio_is_one(temperature: float) -> None:
    rows = sample(temperature)
    engine = NativeEngine(new_model("tiny-0.2m", seed=11), OptimizerConfig(), 1, temperature=temperature)
    ratio = token_ratio(engine.forward(rows).logprobs, rows.streams["behaviour_logprobs"], rows.mask)
    torch.testing.assert_close(ratio, torch.ones(8), atol=1e-4, rtol=0)


def test_another_temperature_is_another_policy() -> None:
    rows = sample(0.7)
    engine = NativeEngine(new_model("tiny-0.2m", seed=11), OptimizerConfig(), 1, temperature=1.0)
    ratio = token_ratio(engine.forward(rows).logprobs, rows.streams["behaviour_logprobs"], rows.mask)
    assert (ratio - 1).abs().max() > 0.01
