"""Models small enough to learn on a CPU in minutes: Qwen3's architecture at about 0.2, 1 and 3 million parameters."""

from __future__ import annotations

import msgspec
import torch
from torch import nn

from astraflow.core.model.config import ModelConfig
from astraflow.core.model.decoder import Decoder
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.errors import UnknownNameError


def _preset(hidden: int, layers: int, intermediate: int, heads: int, kv_heads: int) -> ModelConfig:
    tokenizer = tiny_tokenizer()
    return ModelConfig(
        model_type="qwen3",
        vocab_size=tokenizer.vocab_size,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        qk_norm=True,
        eos_token_ids=tokenizer.eos_token_ids,
        # near 1/√hidden: the usual 0.02 is far below it at these widths, and learning starts several times later
        initializer_range=round(0.8 * hidden**-0.5, 3),
    )


PRESETS: dict[str, ModelConfig] = {
    "tiny-0.2m": _preset(hidden=80, layers=3, intermediate=224, heads=3, kv_heads=1),
    "tiny-1m": _preset(hidden=128, layers=5, intermediate=384, heads=4, kv_heads=2),
    "tiny-3m": _preset(hidden=192, layers=7, intermediate=576, heads=6, kv_heads=2),
}
"""Name → configuration with the tiny tokenizer's vocabulary."""


def new_model(preset: str, vocab_size: int | None = None, seed: int = 1) -> Decoder:
    """Return a preset with new weights, the same for the same seed; `vocab_size` None takes the tiny tokenizer's.

    Weights are normal with the configuration's initializer_range; projections that write to the residual stream are
    scaled down by sqrt(2 × layers), so that its variance does not grow with depth (Radford et al., 2019).
    """
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, list(PRESETS))
    config = PRESETS[preset]
    if vocab_size is not None:
        config = msgspec.structs.replace(config, vocab_size=vocab_size)
    decoder = Decoder(config)
    initialise(decoder, seed)
    return decoder


@torch.no_grad()
def initialise(decoder: Decoder, seed: int) -> None:
    """Draw new weights in place."""
    generator = torch.Generator().manual_seed(seed)
    std = decoder.config.initializer_range
    residual = std / (2 * decoder.config.num_hidden_layers) ** 0.5
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            scale = residual if name.endswith(("o_proj", "down_proj")) else std
            module.weight.normal_(0.0, scale, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
