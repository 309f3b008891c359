"""Stacked weights: the same computation, still written by name."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import Tensor

from astraflow.core.model import PRESETS, Decoder, named_weights, packed_attention, packed_positions
from astraflow.core.model.presets import initialise

BORDERS = torch.tensor([0, 5, 12])


def logits(decoder: Decoder) -> Tensor:
    with torch.no_grad():
        return decoder.logits(decoder(torch.arange(10, 22), packed_positions(BORDERS), packed_attention(BORDERS)))


def decoder_of(seed: int, **changes: object) -> Decoder:
    decoder = Decoder(msgspec.structs.replace(PRESETS["tiny-0.2m"], **changes))
    initialise(decoder, seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(seed))
    return decoder


@pytest.mark.parametrize(
    "changes",
    [{}, {"qkv_bias": True, "output_bias": True, "mlp_bias": True}, {"qk_norm": False, "tie_word_embeddings": False}],
)
def test_stacked_weights_compute_the_same_and_are_written_by_name(changes: dict[str, object]) -> None:
    decoder, other = decoder_of(1, **changes), decoder_of(2, **changes)
    plain = logits(decoder)
    decoder.stack_weights()
    assert torch.equal(logits(decoder), plain)
    live = dict(named_weights(decoder))
    for name, weight in named_weights(other):
        live[name].copy_(weight)
    assert torch.equal(logits(decoder), logits(other))
    assert not any(parameter.requires_grad for parameter in decoder.parameters())


def test_what_follows_a_token_does_not_change_it() -> None:
    decoder = decoder_of(3)
    whole = logits(decoder)
    head = torch.tensor([0, 5, 9])
    with torch.no_grad():
        part = decoder.logits(decoder(torch.arange(10, 19), packed_positions(head), packed_attention(head)))
    torch.testing.assert_close(part, whole[:9])
