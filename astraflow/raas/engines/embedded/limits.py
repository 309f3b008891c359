"""What must hold before an engine opens: a configuration that cannot work is refused there, not at a request."""

from __future__ import annotations

from collections.abc import Collection

from astraflow.core.model import Decoder
from astraflow.errors import ConfigError
from astraflow.raas.engines.embedded.cache import bytes_per_position


def check_ends(model_id: str, ends: Collection[int], vocab_size: int) -> None:
    """Raise ConfigError for end tokens that the model cannot give: a row of the sampler has no place for them."""
    outside = sorted(token for token in ends if not 0 <= token < vocab_size)
    if outside:
        raise ConfigError(
            f"the end tokens {outside[:8]} of {model_id} lie outside its vocabulary of {vocab_size}; "
            "config.json, generation_config.json and tokenizer_config.json name them"
        )


def positions_within(model_id: str, decoder: Decoder, context_length: int, kv_cache_bytes: int) -> int:
    """Tokens whose keys and values fit; ConfigError unless one sequence of `context_length` does."""
    each = bytes_per_position(decoder.config, decoder.model.embed_tokens.weight.dtype)
    positions = kv_cache_bytes // each
    if positions < context_length:
        raise ConfigError(
            f"raas.models.{model_id}.embedded: the keys and values of context_length = {context_length} tokens take "
            f"{context_length * each / 2**30:.3g} GiB, kv_cache_gib allows {kv_cache_bytes / 2**30:.3g}: lower "
            "context_length or raise kv_cache_gib"
        )
    return positions
