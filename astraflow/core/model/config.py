"""What a decoder is: its sizes and options, read from and written to a Hugging Face config.json.

Only what this decoder computes is accepted. A key that could change the computation and is not understood is an error,
never ignored: a model that is loaded almost right trains on logprobs that are almost right.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import msgspec

from astraflow.core.model.rope import RopeConfig
from astraflow.errors import ConfigError, UnknownNameError, boundary

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""model_type → the class that Hugging Face's `architectures` names."""

_SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
_READ = _SIZES | {
    "model_type",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}
_WITHOUT_EFFECT = {
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "max_window_layers",
    "sliding_window",  # only with use_sliding_window
    "is_llama_config",
    "transformers.js_config",
}
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_dropout": (0, None),
    "pretraining_tp": (1, None),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (False, None),
    "use_sliding_window": (False, None),
    "is_causal": (True,),
}
"""What this decoder does, however the configuration says it: an absent key means the first."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and options of one decoder."""

    model_type: str
    """A key of ARCHITECTURES."""
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's."""
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    """Bias on the query, key and value projections."""
    output_bias: bool = False
    """Bias on the attention's output projection."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head's queries and keys before RoPE (Qwen3)."""
    initializer_range: float = 0.02
    """Standard deviation of new weights."""
    eos_token_ids: tuple[int, ...] = ()
    """End tokens that the configuration names."""
    source: dict[str, Any] = {}
    """The config.json this was read from, written back unchanged; empty for a new model."""

    @classmethod
    def from_hf(cls, source: dict[str, Any]) -> Self:
        """Read a config.json's content; ConfigError names what is not supported."""
        model_type = source.get("model_type", "")
        if model_type not in ARCHITECTURES:
            raise UnknownNameError("model_type", str(model_type), list(ARCHITECTURES))
        _refuse_unsupported(source)
        missing = sorted(_SIZES - source.keys())
        if missing:
            raise ConfigError(f"config.json lacks {', '.join(missing)}")
        _check_sizes(source)
        bias = bool(source.get("attention_bias", False))
        hidden, heads = source["hidden_size"], source["num_attention_heads"]
        config = cls(
            model_type=model_type,
            vocab_size=source["vocab_size"],
            hidden_size=hidden,
            intermediate_size=source["intermediate_size"],
            num_hidden_layers=source["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=source.get("num_key_value_heads") or heads,
            head_dim=source.get("head_dim") or (128 if model_type == "qwen3" else hidden // heads),
            max_position_embeddings=source.get("max_position_embeddings", 2048 if model_type == "llama" else 32768),
            rms_norm_eps=source.get("rms_norm_eps", 1e-6),
            rope=RopeConfig.from_hf(source),
            tie_word_embeddings=bool(source.get("tie_word_embeddings", False)),
            qkv_bias=bias or model_type == "qwen2",
            output_bias=bias and model_type != "qwen2",
            mlp_bias=bool(source.get("mlp_bias", False)) and model_type == "llama",
            qk_norm=model_type == "qwen3",
            initializer_range=source.get("initializer_range", 0.02),
            eos_token_ids=_end_tokens(source),
            source=source,
        )
        if config.num_attention_heads % config.num_key_value_heads:
            raise ConfigError(
                f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {config.num_key_value_heads}"
            )
        return config

    @classmethod
    def read(cls, directory: str | Path) -> Self:
        """Read `config.json` of a Hugging Face directory."""
        path = Path(directory) / "config.json"
        with boundary(ConfigError, str(path)):
            source = json.loads(path.read_text("utf-8"))
        return cls.from_hf(source)

    def to_hf(self) -> dict[str, Any]:
        """Return the content of config.json: what was read, or for a new model what transformers would write."""
        if self.source:
            return self.source
        if self.output_bias or self.mlp_bias or (self.qkv_bias != (self.model_type == "qwen2")):
            raise ConfigError("a new model with biases has no config.json of its own: give it one with from_hf")
        eos = list(self.eos_token_ids)
        written: dict[str, Any] = {
            "architectures": [ARCHITECTURES[self.model_type]],
            "attention_dropout": 0.0,
            "dtype": "float32",
            "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "model_type": self.model_type,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope.theta,
            "rope_scaling": self.rope.scaling(),
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_cache": True,
            "vocab_size": self.vocab_size,
        }
        if self.model_type != "qwen2":
            written["attention_bias"] = False
        return dict(sorted(written.items()))

    def write(self, directory: str | Path, dtype: str | None = None) -> None:
        """Write `config.json` as Hugging Face lays it out; one that was read there comes back byte for byte.

        `dtype` is that of the weights beside it; where the file names one, it names this.
        """
        content = self.to_hf()
        if dtype is not None:
            content = content | {key: dtype for key in ("dtype", "torch_dtype") if content.get(key) is not None}
        text = json.dumps(content, indent=2) + "\n"
        (Path(directory) / "config.json").write_text(text, "utf-8")


def _check_sizes(source: dict[str, Any]) -> None:
    for key in sorted(_SIZES | {"max_position_embeddings"}):
        value = source.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"config.json: {key} = {value!r}, expected a whole number from 1")
    epsilon = source.get("rms_norm_eps", 0.0)
    if not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
        raise ConfigError(f"config.json: rms_norm_eps = {epsilon!r}, expected a number from 0 to below 1")


def _end_tokens(source: dict[str, Any]) -> tuple[int, ...]:
    given, vocab_size = source.get("eos_token_id"), source["vocab_size"]
    ids = given if isinstance(given, list) else [] if given is None else [given]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise ConfigError(f"config.json: eos_token_id = {given!r}, expected ids from 0 to {vocab_size - 1}")
    return tuple(ids)


def _refuse_unsupported(source: dict[str, Any]) -> None:
    for key, allowed in _ONLY.items():
        if key in source and source[key] not in allowed:
            raise ConfigError(f"config.json: {key} = {source[key]!r} is not supported, only {allowed[0]!r}")
    if set(source.get("layer_types") or ()) - {"full_attention"}:
        raise ConfigError("config.json: layer_types other than full_attention are not supported")
    for key, value in source.items():
        known = key in _READ or key in _ONLY or key in _WITHOUT_EFFECT or key == "layer_types"
        if not known and not key.startswith(("_", "unsloth")) and value not in (None, False):
            raise ConfigError(f"config.json: {key} = {value!r} is not known and may change what the model computes")
