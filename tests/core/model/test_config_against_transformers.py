"""A hand-edited config.json is either refused by name or computed as transformers computes it; nothing in between."""

from __future__ import annotations

import json
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from astraflow.core.model import load_model, packed_attention, packed_positions
from astraflow.errors import ConfigError, WeightError

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
KINDS = ("llama", "qwen2", "qwen3")
LENGTH = 40
ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "default"},
    {"rope_type": "default", "factor": 3.0},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 0.7, "mscale_all_dim": 0.4},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "dynamic", "factor": 2.0},
)
KEYS: dict[str, tuple[Any, ...]] = {
    "rope_parameters": ROPES,
    "rope_scaling": ROPES,
    "rope_theta": (100, 5e5),
    "rms_norm_eps": (1e-3, None),
    "is_causal": (False, True, None),
    "use_bidirectional_attention": (True, False),
    "sliding_window": (8, None),
    "use_sliding_window": (True, False),
    "layer_types": (["sliding_attention"] * 2, ["full_attention"] * 2, None),
    "attention_chunk_size": (8, None),
    "partial_rotary_factor": (0.5, 1.0),
    "max_position_embeddings": (64,),
    "final_logit_softcapping": (5.0, None),
    "hidden_act": ("gelu", "silu"),
    "mlp_bias": (False,),
    "logit_scale": (0.5,),
    "is_decoder": (True, False),
    "qk_norm": (True, False),
    "rotary_pct": (0.5,),
}


@cache
def base(kind: str) -> Any:
    """A transformers model of random weights, norms and biases included."""
    transformers = pytest.importorskip("transformers")
    # a head of its own width where the kind can have one
    sizes = {**SIZES, "head_dim": 8} if kind == "qwen2" else SIZES
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **sizes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def edits(seed: int) -> tuple[str, dict[str, Any]]:
    rng = random.Random(seed)
    keys = rng.sample(sorted(KEYS), rng.choice([1, 1, 2, 3]))
    return rng.choice(KINDS), {key: rng.choice(KEYS[key]) for key in keys}


EDITS = [
    ("llama", {"is_causal": False}),
    ("qwen3", {"is_causal": False}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    *map(edits, range(24)),
]


@pytest.mark.parametrize(("kind", "edit"), EDITS)
def test_it_is_refused_or_computed_as_transformers_does(kind: str, edit: dict[str, Any], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    base(kind).save_pretrained(tmp_path / "base")
    shutil.copytree(tmp_path / "base", tmp_path / "edited")
    file = tmp_path / "edited" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **edit}))
    try:
        decoder, _ = load_model(tmp_path / "edited", "float32")
    except (ConfigError, WeightError):
        return
    ids = torch.randint(0, 101, (LENGTH,), generator=torch.Generator().manual_seed(0))
    borders = torch.tensor([0, LENGTH])
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "edited", dtype=torch.float32).eval()
    with torch.inference_mode():
        ours = decoder.logits(decoder(ids, packed_positions(borders), packed_attention(borders)))
        theirs = reference(ids[None]).logits[0]
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
