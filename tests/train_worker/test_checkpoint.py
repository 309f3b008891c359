"""A state is whole or absent, and a trainer that goes on from it makes the same numbers as one that never stopped."""

import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from astraflow.core.model import new_model
from astraflow.core.text import tiny_tokenizer
from astraflow.errors import WeightError
from astraflow.train_worker.checkpoint import (
    STATES_KEPT,
    TrainerProgress,
    load_state,
    oldest_step,
    save_checkpoint,
    save_state,
)


def test_the_newest_whole_state_is_found(tmp_path: Path) -> None:
    assert load_state(tmp_path / "none") is None
    for step in (1, 2, 10):
        save_state(tmp_path, {"x": torch.tensor([float(step)])}, TrainerProgress(step, step + 5))
    found = load_state(tmp_path)
    assert found is not None
    state, progress = found
    assert (state["x"].item(), progress.step, progress.version) == (10.0, 10, 15)
    assert len(list(tmp_path.iterdir())) == STATES_KEPT


def test_what_a_killed_process_left_half_written_is_not_a_state(tmp_path: Path) -> None:
    save_state(tmp_path, {"x": torch.zeros(1)}, TrainerProgress(3, 3))
    half = tmp_path / ".step_000004.99999"
    half.mkdir()
    (half / "state.safetensors").write_bytes(b"half")
    found = load_state(tmp_path)
    assert found is not None
    assert found[1].step == 3
    save_state(tmp_path, {"x": torch.zeros(1)}, TrainerProgress(4, 4))
    assert not half.exists()


def test_the_same_step_again_replaces_the_state(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        save_state(tmp_path, {"x": torch.tensor([value])}, TrainerProgress(3, int(value)))
    found = load_state(tmp_path)
    assert found is not None
    assert (found[0]["x"].item(), found[1].version) == (2.0, 2)


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    path = save_state(tmp_path, {"x": torch.zeros(1)}, TrainerProgress(3, 3))
    (path / "state.safetensors").write_bytes(b"not tensors")
    with pytest.raises(WeightError, match="step_000003"):
        load_state(tmp_path)
    shutil.rmtree(path)
    assert load_state(tmp_path) is None


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("state.safetensors", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
        ("state.safetensors", lambda content: b""),
        ("progress.json", lambda content: content.replace(b'"version":2', b'"version":3')),
        ("progress.json", lambda content: content[:9]),
    ],
)
def test_a_damaged_newest_state_leaves_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, change: Callable[[bytes], bytes]
) -> None:
    for step in (1, 2):
        path = save_state(tmp_path, {"x": torch.tensor([float(step)])}, TrainerProgress(step, step, {step: step}))
    assert oldest_step(tmp_path) == 1
    (path / file).write_bytes(change((path / file).read_bytes()))
    found = load_state(tmp_path)
    assert found is not None
    assert (found[0]["x"].item(), found[1].step) == (1.0, 1)
    [warning] = caplog.messages
    assert f"{path.name}/" in warning
    assert "step_000001 is used instead" in warning
    # what is gone on from is the newest now, whatever becomes of the damaged one
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["damaged_step_000002", "step_000001"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file of this process can grow beyond 64 KiB, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_no_draft_and_what_was_there_before(tmp_path: Path) -> None:
    kept = save_state(tmp_path, {"x": torch.ones(1)}, TrainerProgress(3, 3))
    for step in (3, 4):
        with pytest.raises((WeightError, SafetensorError), match="File too large"):
            save_state(tmp_path, {"x": torch.zeros(2**20)}, TrainerProgress(step, step))
    decoder = new_model("tiny-1m")
    with pytest.raises((WeightError, SafetensorError), match="File too large") as failure:
        save_checkpoint(tmp_path / "checkpoint", decoder, tiny_tokenizer())
    assert list(tmp_path.iterdir()) == [kept]
    assert failure.type is WeightError
    assert "checkpoint cannot be written" in str(failure.value)
    found = load_state(tmp_path)
    assert found is not None
    assert found[0]["x"].item() == 1.0


def test_a_state_is_as_readable_as_its_progress(tmp_path: Path) -> None:
    path = save_state(tmp_path, {"x": torch.zeros(1)}, TrainerProgress(3, 3))
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1
