from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

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


def test_weights_that_are_not_finite_are_not_published(manager: WeightManager) -> None:
    """3.4e38 is a float32 and rounds to an infinite bfloat16."""
    for value in (float("nan"), float("inf"), -float("inf"), 3.4e38):
        diverged = {"w": PARAMS["w"], "b": torch.tensor([1.0, value])}
        with pytest.raises(WeightError, match=r"b: 1 of 2 values are NaN or inf|b holds values that are not finite as"):
            manager.offload(diverged, 35)
    with pytest.raises(WeightError, match="version 35 of model0 is not published"):
        manager.manifest(35)
    manager.offload(PARAMS, 36)
    assert manager.manifest(36).version == 36


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
    with pytest.raises(
        WeightError, match=r"the weight sender agent of model0 ended with exit code 1: CallerError: .*; log: "
    ):
        manager.get_sender_endpoint()
    manager.shutdown()
    manager.shutdown()
    assert "cannot listen on 256.0.0.1" in capfd.readouterr().err


def test_the_package_has_no_other_public_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = astraflow.core.weight_manager.Nothing


def test_a_full_disk_ends_the_agent_with_its_cause_and_leaves_no_draft(tmp_path: Path) -> None:
    """As on a full disk, what the agent writes is cut off from some moment on."""
    with WeightManager("model0", "secret", transports=("disk",), folder=tmp_path / "versions") as manager:
        manager.initialize(PARAMS)
        manager.offload(PARAMS, 0)
        assert manager.manifest(0).version == 0
        resource.prlimit(manager.agent_pid, resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))
        manager.offload(PARAMS, 1)
        cause = r"ended with exit code 1: WeightError: .*v00000001 cannot be written: File too large"
        with pytest.raises(WeightError, match=cause):
            manager.manifest(1)
        with pytest.raises(WeightError, match="ended with exit code 1"):
            manager.offload(PARAMS, 2)
        assert [path.name for path in (tmp_path / "versions").iterdir()] == ["v00000000"]


def test_an_agent_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with WeightManager("model0", "secret", transports=("disk",), folder=tmp_path / "file" / "x") as manager:
        manager.initialize(PARAMS)
        with pytest.raises(WeightError, match=r"ended with exit code 1: WeightError: folder .* for weight versions"):
            manager.get_sender_endpoint()
