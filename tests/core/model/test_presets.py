"""The tiny models: their sizes, and that a seed is all they depend on."""

from __future__ import annotations

import pytest
import torch

from astraflow.core.model import PRESETS, named_weights, new_model
from astraflow.core.text import tiny_tokenizer


@pytest.mark.parametrize(("name", "millions"), [("tiny-0.2m", 0.2), ("tiny-1m", 1.0), ("tiny-3m", 3.0)])
def test_sizes_are_what_the_names_say(name: str, millions: float) -> None:
    decoder = new_model(name)
    assert round(sum(parameter.numel() for parameter in decoder.parameters()) / 1e6, 1) == millions
    assert PRESETS[name].vocab_size == tiny_tokenizer().vocab_size
    assert PRESETS[name].eos_token_ids == tiny_tokenizer().eos_token_ids


def test_the_seed_decides_the_weights() -> None:
    one, same, other = (dict(named_weights(new_model("tiny-0.2m", seed=seed))) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_vocabulary_of_another_size_is_taken() -> None:
    decoder = new_model("tiny-0.2m", vocab_size=200)
    assert decoder.config.vocab_size == 200
    assert decoder.model.embed_tokens.weight.shape == (200, PRESETS["tiny-0.2m"].hidden_size)
