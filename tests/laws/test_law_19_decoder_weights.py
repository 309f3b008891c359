"""LAW 19. Tied weights are listed once, with their aliases: here by the decoder itself, in trainer and engine alike."""

from __future__ import annotations

import msgspec
import torch

from astraflow.core.model import PRESETS, Decoder, named_weights, new_model, tied_aliases


def test_a_tied_decoder_lists_its_embedding_once_and_names_the_alias() -> None:
    decoder = new_model("tiny-0.2m")
    names = [name for name, _ in named_weights(decoder)]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert tied_aliases(decoder.config) == {"model.embed_tokens.weight": ("lm_head.weight",)}


def test_an_untied_decoder_lists_both() -> None:
    decoder = Decoder(msgspec.structs.replace(PRESETS["tiny-0.2m"], tie_word_embeddings=False))
    names = [name for name, _ in named_weights(decoder)]
    assert {"model.embed_tokens.weight", "lm_head.weight"} < set(names)
    assert tied_aliases(decoder.config) == {}


def test_buffers_are_no_weights_and_stacking_changes_neither_names_nor_values() -> None:
    decoder = new_model("tiny-0.2m", seed=1)
    before = [(name, weight.clone()) for name, weight in named_weights(decoder)]
    decoder.stack_weights()
    for (name, value), (name_after, live) in zip(before, named_weights(decoder), strict=True):
        assert name == name_after
        assert torch.equal(value, live)
        assert live.is_contiguous()
    assert not any("cos" in name or "sin" in name for name, _ in before)
