"""config.json: what is read, what is written, what is refused and how it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.core.model import PRESETS, ModelConfig, new_model
from astraflow.errors import ConfigError, UnknownNameError

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_new_configuration_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    PRESETS[name].write(tmp_path)
    read = ModelConfig.read(tmp_path)
    assert {**vars_of(read), "source": {}} == vars_of(PRESETS[name])
    read.write(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == PRESETS[name].to_hf()


def vars_of(config: ModelConfig) -> dict[str, Any]:
    return {field: getattr(config, field) for field in config.__struct_fields__}


def test_defaults_of_each_architecture() -> None:
    llama = ModelConfig.from_hf({"model_type": "llama", **SIZES, "eos_token_id": [1, 2]})
    assert (llama.head_dim, llama.qkv_bias, llama.qk_norm, llama.eos_token_ids) == (12, False, False, (1, 2))
    qwen2 = ModelConfig.from_hf({"model_type": "qwen2", **SIZES, "eos_token_id": 7})
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.eos_token_ids) == (True, False, (7,))
    qwen3 = ModelConfig.from_hf({"model_type": "qwen3", **SIZES, "rope_theta": 1e6})
    assert (qwen3.head_dim, qwen3.qk_norm, qwen3.rope.theta) == (128, True, 1e6)


def test_keys_without_effect_are_let_through() -> None:
    ModelConfig.from_hf(
        {
            "model_type": "qwen2",
            **SIZES,
            "sliding_window": 4096,
            "use_sliding_window": False,
            "max_window_layers": 21,
            "layer_types": ["full_attention"] * 3,
            "_name_or_path": "x",
            "some_future_switch": False,
            "rope_scaling": None,
        }
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "qwen4"}, "unknown model_type 'qwen4'"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "unknown rope_type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "x": 1}}, "x"),
        ({"num_experts": 8}, "num_experts"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"is_causal": False}, "is_causal = False"),
        ({"is_causal": None}, "is_causal = None"),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "has rope_parameters and rope_scaling",
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor of the rotary embedding is '2'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": None}}, "factor of the rotary embedding is None"),
        ({"eos_token_id": -1}, "eos_token_id = -1, expected ids from 0 to 96"),
        ({"eos_token_id": [2, 97]}, r"eos_token_id = \[2, 97\], expected ids from 0 to 96"),
        ({"eos_token_id": "2"}, "eos_token_id = '2'"),
        ({"vocab_size": "97"}, "vocab_size = '97', expected a whole number from 1"),
        ({"hidden_size": 0}, "hidden_size = 0"),
        ({"rms_norm_eps": None}, "rms_norm_eps = None"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_hf({"model_type": "qwen3", **SIZES, **change})


def test_missing_sizes_are_named() -> None:
    with pytest.raises(ConfigError, match="hidden_size"):
        ModelConfig.from_hf({"model_type": "llama", "vocab_size": 3})
    with pytest.raises(UnknownNameError, match="tiny-1m"):
        new_model("tiny-1")
