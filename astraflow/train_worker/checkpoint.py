"""What a trainer leaves on disk: checkpoints in Hugging Face layout, and states to continue from. A directory is whole
or absent, whatever is killed meanwhile.

    checkpoints/step_%06d/                 for people and engines
    recover/<model_id>/step_%06d/          state.safetensors (model, optimiser, schedule, random state), progress.json
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from astraflow.core.model import Decoder, save_model
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.errors import WeightError

STATES_KEPT = 2
"""The newest state and the one before it."""

_STATE, _PROGRESS = "state.safetensors", "progress.json"


class TrainerProgress(msgspec.Struct, frozen=True):
    """Where a trainer was when its state was kept."""

    step: int
    """The last trained step."""
    version: int
    """The number under which that step's weights were announced."""
    step_of: dict[int, int] = {}
    """Which step made each version so far."""


def save_checkpoint(directory: Path, decoder: Decoder, tokenizer: Tokenizer) -> Path:
    """Write model and tokenizer to `directory`; readers never see half of it, and one that was there is replaced."""
    draft = _draft(directory)
    save_model(draft, decoder, decoder.config)
    tokenizer.save(draft)
    return _publish(draft, directory)


def save_state(root: Path, state: Mapping[str, Tensor], progress: TrainerProgress) -> Path:
    """Keep a state to continue from; older ones than the last `STATES_KEPT` go. It is on disk when this returns."""
    directory = root / f"step_{progress.step:06d}"
    draft = _draft(directory)
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, draft / _STATE)
    (draft / _PROGRESS).write_bytes(msgspec.json.encode(progress))
    for name in (_STATE, _PROGRESS):
        _sync(draft / name)
    _publish(draft, directory)
    _sync(root)
    for old in _states(root)[:-STATES_KEPT]:
        shutil.rmtree(old)
    return directory


def load_state(root: Path) -> tuple[dict[str, Tensor], TrainerProgress] | None:
    """The newest state; None where none was kept. WeightError where it cannot be read."""
    states = _states(root)
    if not states:
        return None
    try:
        progress = msgspec.json.decode((states[-1] / _PROGRESS).read_bytes(), type=TrainerProgress)
        return load_file(states[-1] / _STATE), progress
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise WeightError(f"the state in {states[-1]} cannot be read: {error}") from error


def _states(root: Path) -> list[Path]:
    """Whole states, the oldest first."""
    return sorted(root.glob("step_*")) if root.is_dir() else []


def _draft(directory: Path) -> Path:
    """An empty directory beside it, under a name that no reader looks for."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    for left in directory.parent.glob(f".{directory.name}.*"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    draft.mkdir()
    return draft


def _publish(draft: Path, directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    draft.replace(directory)
    return directory


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
