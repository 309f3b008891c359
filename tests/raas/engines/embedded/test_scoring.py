from __future__ import annotations

import pytest
import torch

from astraflow.core.model import packed_attention, packed_positions
from astraflow.core.model.presets import new_model
from astraflow.raas.engines.embedded.scoring import score


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_each_sequence_is_scored_by_itself(temperature: float) -> None:
    decoder = new_model("tiny-0.2m", vocab_size=50)
    sequences = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5]]
    found = score(decoder, sequences, temperature)
    assert [len(values) for values in found] == [4, 1, 3]
    for tokens, values in zip(sequences, found, strict=True):
        ids = torch.tensor(tokens)
        borders = torch.tensor([0, len(tokens)])
        with torch.no_grad():
            logits = decoder.logits(decoder(ids, packed_positions(borders), packed_attention(borders)))
        expected = (logits / temperature).log_softmax(-1)[torch.arange(len(tokens) - 1), ids[1:]]
        assert torch.allclose(torch.from_numpy(values), expected, atol=1e-5)
