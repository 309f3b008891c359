from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import astraflow.core.weight_manager
from astraflow.core.weight_manager import WeightManager
from astraflow.core.weight_manager.digest import check_manifest
from astraflow.core.weight_manager.tensors import wire_digest
from astraflow.errors import WeightError

PARAMS = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}


@pytest.fixture(scope="module")
def manager() -> Iterator[WeightManager]:
    with WeightManager("model0", "secret", wire_dtype="bfloat16") as manager:
        manager.initialize(PARAMS.items())
        yield manager


def test_a_version_is_its_parameters_rounded_once(manager: WeightManager) -> None:
    metrics = manager.offload(PARAMS, 0)
    manifest = manager.manifest(0)
    check_manifest(manifest)
    assert metrics["bytes"] == manifest.nbytes == 64 + 4
    assert metrics["copy_s"] > 0
    assert manager.digest_s(0) > 0
    assert [(entry.name, entry.shape, entry.dtype) for entry in manifest.tensors] == [
        ("w", (2, 3), "bfloat16"),
        ("b", (2,), "bfloat16"),
    ]
    assert [entry.digest for entry in manifest.tensors] == [wire_digest(param, "bfloat16") for param in PARAMS.values()]


def test_training_may_go_on_as_soon_as_offload_returns(manager: WeightManager) -> None:
    params = {name: param.clone() for name, param in PARAMS.items()}
    manager.offload(params, 5)
    for param in params.values():
        param.zero_()
    assert manager.manifest(5).digest == manager.manifest(0).digest


def test_numbers_never_repeat(manager: WeightManager) -> None:
    manager.offload(PARAMS, 10)
    for version in (10, 9):
        with pytest.raises(WeightError, match=f"version {version} of model0 cannot follow 10: numbers never repeat"):
            manager.offload(PARAMS, version)


def test_a_version_that_was_not_published_has_no_manifest(manager: WeightManager) -> None:
    manager.offload(PARAMS, 20)
    with pytest.raises(WeightError, match="version 21 of model0 is not published; the newest is 20"):
        manager.manifest(21)
    with pytest.raises(WeightError, match="version 19 of model0 was never published"):
        manager.manifest(19)


def test_a_version_that_does_not_fit_is_refused_and_the_next_one_is_served(manager: WeightManager) -> None:
    with pytest.raises(WeightError, match="b is missing"):
        manager.offload({"w": PARAMS["w"]}, 30)
    manager.offload(PARAMS, 31)
    assert manager.manifest(31).version == 31


def test_other_ranks_publish_nothing(manager: WeightManager) -> None:
    assert manager.offload({}, 40, rank=1, world_size=2) == {"copy_s": 0.0, "bytes": 0.0}
    with pytest.raises(WeightError, match="rank 2 is not one of 2"):
        manager.offload(PARAMS, 40, rank=2, world_size=2)


def test_reports_that_nobody_reads_delay_nothing(manager: WeightManager) -> None:
    for version in range(100, 400):
        manager.offload(PARAMS, version)
    assert manager.manifest(399).version == 399


def test_what_was_not_initialised_says_so() -> None:
    manager = WeightManager("model0", "secret")
    for use in (lambda: manager.offload(PARAMS, 0), manager.get_sender_endpoint):
        with pytest.raises(WeightError, match="weights of model0 are not initialised"):
            use()
    with pytest.raises(WeightError, match="model0 has no parameters to publish"):
        manager.initialize({})
    manager.shutdown()


def test_a_dead_agent_is_an_error_and_shutdown_still_works(capfd: pytest.CaptureFixture[str]) -> None:
    manager = WeightManager("model0", "secret", host="256.0.0.1")
    manager.initialize(PARAMS)
    with pytest.raises(WeightError, match="the weight sender agent of model0 ended with exit code 1; log: "):
        manager.get_sender_endpoint()
    manager.shutdown()
    manager.shutdown()
    assert "cannot listen on 256.0.0.1" in capfd.readouterr().err


def test_the_package_has_no_other_public_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = astraflow.core.weight_manager.Nothing
