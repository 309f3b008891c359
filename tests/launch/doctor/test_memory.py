import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from astraflow.core.model import PRESETS, Decoder, ModelConfig, new_model
from astraflow.launch.doctor import Finding, Machine, Severity
from astraflow.launch.doctor.memory import parameters

GIB = 2**30


def test_more_than_the_machine_has(findings: Callable[..., list[Finding]], here: Machine) -> None:
    small = dataclasses.replace(here, memory=GIB // 2, memory_available=GIB // 2)
    found = next(f for f in findings("trainer_base.train_batch_size=4096", on=small) if f.check == "memory")
    assert found.severity is Severity.ERROR
    assert "the machine has 0.5" in found.message
    assert found.key == "trainer_model0.actor.mb_spec.max_tokens_per_mb"


def test_the_engines_cache_is_named_where_it_is_the_largest(one: Callable[..., Finding]) -> None:
    embedded = "+raas.models.model0.embedded"
    found = one("memory", f"{embedded}.max_running_requests=200000", f"{embedded}.kv_cache_gib=1000")
    assert found.key == "raas.models.model0.embedded.max_running_requests"


def test_more_than_is_available_now_is_a_warning(one: Callable[..., Finding], here: Machine) -> None:
    found = one("memory", on=dataclasses.replace(here, memory_available=GIB // 4))
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_counted_as_the_decoder_has_them(preset: str) -> None:
    decoder = new_model(preset)
    assert parameters(PRESETS[preset]) == sum(p.numel() for p in decoder.parameters())


@pytest.mark.parametrize("option", ["tie_word_embeddings", "qkv_bias", "output_bias", "mlp_bias"])
def test_every_option_of_a_decoder_counts(option: str) -> None:
    options: dict[str, Any] = {option: True}
    config = ModelConfig(
        model_type="llama",
        vocab_size=40,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=6,
        max_position_embeddings=16,
        **options,
    )
    assert parameters(config) == sum(p.numel() for p in Decoder(config).parameters())
