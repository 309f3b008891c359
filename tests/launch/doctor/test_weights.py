import dataclasses
from collections.abc import Callable

import pytest

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
