import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from astraflow.core.model import named_weights, new_model, save_model
from astraflow.core.text import tiny_tokenizer
from astraflow.launch.doctor import Finding, Machine, Severity


def test_a_wire_wider_than_the_weights(one: Callable[..., Finding]) -> None:
    found = one("weights", "+experiment.dtype=bfloat16", "+experiment.wire_dtype=float32")
    assert (found.severity, found.key) == (Severity.WARNING, "experiment.wire_dtype")


def test_float16_for_training(one: Callable[..., Finding]) -> None:
    assert one("weights", "+experiment.dtype=float16").key == "experiment.dtype"


def test_rounded_rollouts_with_a_loss_that_takes_them_for_exact(one: Callable[..., Finding]) -> None:
    found = one("weights", "+experiment.wire_dtype=bfloat16", "+trainer_base.actor.loss=ppo")
    assert found.key == "trainer_model0.actor.loss"


def test_rounded_rollouts_are_fine_with_the_decoupled_loss(findings: Callable[..., list[Finding]]) -> None:
    assert findings("+experiment.wire_dtype=bfloat16") == []


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("+trainer_base.engine.device=cuda", "trainer_model0.engine.device"),
        ("+raas.models.model0.embedded.device=cuda", "raas.models.model0.embedded.device"),
    ],
)
def test_a_gpu_that_is_not_there(
    one: Callable[..., Finding], findings: Callable[..., list[Finding]], here: Machine, override: str, key: str
) -> None:
    assert one("weights", override).key == key
    assert findings(override, on=dataclasses.replace(here, gpus=1)) == []


def test_shared_memory_that_this_system_has_not(one: Callable[..., Finding], here: Machine) -> None:
    without = dataclasses.replace(here, shares_memory=False)
    found = one("weights", "experiment.weight_transfer_mode=shm", on=without)
    assert found.severity is Severity.ERROR
    assert found.remedy == "set experiment.weight_transfer_mode=tcp"


@pytest.fixture
def model(run_yaml: Path, tmp_path: Path) -> Callable[[Mapping[str, Tensor]], Path]:
    """A model's directory, whose weights are replaced as given, which the configuration names."""

    def make(replaced: Mapping[str, Tensor]) -> Path:
        decoder = new_model("tiny-1m")
        save_model(tmp_path / "model", dict(named_weights(decoder)) | dict(replaced), decoder.config)
        tiny_tokenizer().save(tmp_path / "model")
        text = run_yaml.read_text()
        start, end = text.index("base_model:"), text.index("raas:")
        run_yaml.write_text(text[:start] + text[end:])
        return tmp_path / "model"

    return make


def test_weights_that_are_not_finite(one: Callable[..., Finding], model: Callable[..., Path]) -> None:
    path = model({"model.norm.weight": torch.full((128,), float("nan"))})
    found = one("weights", f"+experiment.model_path={path}")
    assert (found.severity, found.key) == (Severity.ERROR, "experiment.model_path")
    assert "model.norm.weight: 128 of 128 values are NaN or infinite" in found.message


def test_weights_that_the_wire_cannot_carry(one: Callable[..., Finding], model: Callable[..., Path]) -> None:
    path = model({"model.norm.weight": torch.full((128,), 1e5)})
    found = one("weights", f"+experiment.model_path={path}", "+experiment.wire_dtype=float16")
    assert found.severity is Severity.ERROR
    assert "float32 values leave the range of float16" in found.message


def test_the_index_of_another_save(one: Callable[..., Finding], model: Callable[..., Path]) -> None:
    path = model({})
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model-00001-of-00002.safetensors"}}')
    found = one("weights", f"+experiment.model_path={path}")
    assert found.severity is Severity.WARNING
    assert "which names other files" in found.message


def test_a_config_that_names_another_type_than_the_weights(
    one: Callable[..., Finding], findings: Callable[..., list[Finding]], model: Callable[..., Path]
) -> None:
    path = model({})
    override = f"+experiment.model_path={path}"
    assert findings(override) == []
    config = path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "bfloat16"}))
    assert "says bfloat16, and the weights are float32" in one("weights", override).message
