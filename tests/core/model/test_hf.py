"""Hugging Face layout: the same bytes out as in, logits equal to transformers', clear refusals."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from astraflow.core.model import (
    Decoder,
    ModelConfig,
    load_model,
    named_weights,
    new_model,
    packed_attention,
    packed_positions,
    save_model,
    tied_aliases,
)
from astraflow.core.text import tiny_tokenizer
from astraflow.errors import ConfigError, WeightError

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-biased": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama-llama3-rope": {"model_type": "llama", "rope_parameters": {"rope_theta": 500.0, **LLAMA3}},
    "llama-linear-rope": {
        "model_type": "llama",
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0},
    },
    "qwen2": {"model_type": "qwen2", "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    "qwen2-tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "qwen3-tied": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "qwen3-biased": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "qwen3-yarn-rope": {"model_type": "qwen3", "head_dim": 16, "rope_parameters": {"rope_theta": 1e4, **YARN}},
}


def peer(kind: str) -> Any:
    """A transformers model of random weights, norms and biases included."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**{**SIZES, **KINDS[kind]}, attn_implementation="eager")
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(kind: str, tmp_path: Path) -> None:
    model = peer(kind)
    model.save_pretrained(tmp_path)
    decoder, config = load_model(tmp_path)
    lengths = [1, 7, 40, 100]
    rows = [torch.randint(0, 97, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    with torch.no_grad():
        hidden = decoder(torch.cat(rows), packed_positions(cu_seqlens), packed_attention(cu_seqlens))
        ours = decoder.logits(hidden).split(lengths)
        theirs = [model(input_ids=row[None]).logits[0] for row in rows]
    assert config.model_type == KINDS[kind]["model_type"]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen2-tied", "qwen3-tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_transformers_wrote_comes_back_byte_for_byte(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    peer(kind).to(dtype).save_pretrained(tmp_path / "theirs")
    tiny_tokenizer().save(tmp_path / "theirs")
    decoder, config = load_model(tmp_path / "theirs")
    save_model(tmp_path / "ours", decoder, config, tmp_path / "theirs")
    assert next(decoder.parameters()).dtype == dtype
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name


def test_transformers_reads_what_we_write(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    decoder = new_model("tiny-0.2m", seed=5)
    tiny_tokenizer().save(tmp_path / "tokenizer")
    save_model(tmp_path, decoder, decoder.config, tmp_path / "tokenizer")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.arange(7, 37)
    cu_seqlens = torch.tensor([0, 30])
    with torch.no_grad():
        ours = decoder.logits(decoder(ids, packed_positions(cu_seqlens), packed_attention(cu_seqlens)))
        torch.testing.assert_close(ours, model(input_ids=ids[None]).logits[0], atol=1e-4, rtol=1e-4)
    assert ModelConfig.read(tmp_path).eos_token_ids == tiny_tokenizer().eos_token_ids


def test_shards_and_their_index_are_read_back_exactly(tmp_path: Path) -> None:
    decoder = new_model("tiny-0.2m", seed=2)
    save_model(tmp_path, decoder, decoder.config, max_shard_bytes=200_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    assert index["metadata"]["total_size"] == sum(weight.nbytes for _, weight in named_weights(decoder))
    again, _ = load_model(tmp_path)
    for (name, weight), (name_again, weight_again) in zip(named_weights(decoder), named_weights(again), strict=True):
        assert name == name_again
        assert torch.equal(weight, weight_again)


def test_a_written_copy_of_a_tied_tensor_must_equal_it(tmp_path: Path) -> None:
    decoder = new_model("tiny-0.2m")
    weights = dict(named_weights(decoder))
    assert "lm_head.weight" not in weights
    assert tied_aliases(decoder.config) == {"model.embed_tokens.weight": ("lm_head.weight",)}
    save_model(tmp_path, {**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}, decoder.config)
    load_model(tmp_path)
    save_model(tmp_path, {**weights, "lm_head.weight": weights["model.embed_tokens.weight"] + 1}, decoder.config)
    with pytest.raises(WeightError, match="tied"):
        load_model(tmp_path)


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    decoder = new_model("tiny-0.2m")
    weights = dict(named_weights(decoder))
    norm = weights.pop("model.norm.weight")
    save_model(tmp_path, {**weights, "model.extra": norm.clone()}, decoder.config)
    with pytest.raises(WeightError, match=r"missing: model\.norm\.weight.*model\.extra"):
        load_model(tmp_path)
    save_model(tmp_path, {**weights, "model.norm.weight": torch.ones(3)}, decoder.config)
    with pytest.raises(WeightError, match=r"model\.norm\.weight has shape \(3,\)"):
        load_model(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_model(tmp_path / "nowhere")


def test_config_json_names_the_type_of_what_is_written(tmp_path: Path) -> None:
    """A bfloat16 base that was trained in float32: transformers must load what was trained, not its rounding."""
    transformers = pytest.importorskip("transformers")
    peer("llama").to(torch.bfloat16).save_pretrained(tmp_path / "base")
    trained, config = load_model(tmp_path / "base", "float32")
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(1 + 1e-4)
    save_model(tmp_path / "trained", trained, config)
    assert json.loads((tmp_path / "trained" / "config.json").read_text())["dtype"] == "float32"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained").state_dict()
    for name, weight in named_weights(trained):
        assert theirs[name].dtype == weight.dtype
        assert torch.equal(theirs[name], weight), name


def test_a_whole_file_comes_before_the_index_of_another_save(tmp_path: Path) -> None:
    """As transformers reads it; and the save itself leaves nothing of the one before."""
    old, new = new_model("tiny-0.2m", seed=1), new_model("tiny-0.2m", seed=2)
    save_model(tmp_path / "old", old, old.config, max_shard_bytes=200_000)
    save_model(tmp_path / "new", new, new.config)
    shutil.copytree(tmp_path / "old", tmp_path / "both")
    shutil.copy(tmp_path / "new" / "model.safetensors", tmp_path / "both")
    assert same(load_model(tmp_path / "both")[0], new)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "both").state_dict()
    assert torch.equal(theirs["model.norm.weight"], new.state_dict()["model.norm.weight"])


@pytest.mark.parametrize("sizes", [(200_000, 10**9), (10**9, 200_000), (100_000, 200_000)])
def test_a_save_replaces_the_weights_of_an_earlier_one(sizes: tuple[int, int], tmp_path: Path) -> None:
    old, new = new_model("tiny-0.2m", seed=1), new_model("tiny-0.2m", seed=2)
    save_model(tmp_path, old, old.config, max_shard_bytes=sizes[0])
    save_model(tmp_path, new, new.config, max_shard_bytes=sizes[1])
    assert same(load_model(tmp_path)[0], new)
    save_model(tmp_path / "fresh", new, new.config, max_shard_bytes=sizes[1])
    assert {path.name for path in tmp_path.glob("model*")} == {path.name for path in (tmp_path / "fresh").iterdir()} - {
        "config.json"
    }


def test_one_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    decoder = new_model("tiny-0.2m")
    save_model(tmp_path, decoder, decoder.config, max_shard_bytes=200_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.norm.weight"] = "again.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"model.embed_tokens.weight": torch.zeros(2)}, tmp_path / "again.safetensors")
    with pytest.raises(WeightError, match=r"model.embed_tokens.weight is in again.safetensors and in model-00001"):
        load_model(tmp_path)


def test_weights_are_as_readable_as_the_files_beside_them(tmp_path: Path) -> None:
    decoder = new_model("tiny-0.2m")
    save_model(tmp_path / "one", decoder, decoder.config)
    save_model(tmp_path / "many", decoder, decoder.config, max_shard_bytes=200_000)
    assert len({path.stat().st_mode for path in [*tmp_path.glob("one/*"), *tmp_path.glob("many/*")]}) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
def test_weights_that_are_not_finite_are_refused_at_load(name: str, value: float, tmp_path: Path) -> None:
    decoder = new_model("tiny-0.2m")
    weights = {name: weight.clone() for name, weight in named_weights(decoder)}
    weights[name].view(-1)[-1] = value
    save_model(tmp_path, weights, decoder.config)
    with pytest.raises(WeightError, match=rf"{name}: 1 of {weights[name].numel()} values are NaN or infinite"):
        load_model(tmp_path)


def test_weights_that_leave_the_range_of_the_type_are_refused_at_load(tmp_path: Path) -> None:
    decoder = new_model("tiny-0.2m")
    weights = dict(named_weights(decoder)) | {"model.norm.weight": torch.full_like(decoder.model.norm.weight, 1e5)}
    save_model(tmp_path, weights, decoder.config)
    assert load_model(tmp_path, "bfloat16")
    with pytest.raises(WeightError, match=r"model.norm.weight: float32 values leave the range of float16"):
        load_model(tmp_path, "float16")


def same(left: Decoder, right: Decoder) -> bool:
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(named_weights(left), named_weights(right), strict=True))
