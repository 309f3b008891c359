"""What a trainer leaves on disk: checkpoints in Hugging Face layout, and states to continue from. A directory is whole
or absent, whatever is killed meanwhile.

    checkpoints/step_%06d/                 for people and engines
    recover/<model_id>/step_%06d/          state.safetensors (model, optimiser, schedule, random state), progress.json
"""

from __future__ import annotations

import logging
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from astraflow.core.model import Decoder, save_model
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.core.weight_manager.digest import parts_digest
from astraflow.errors import AstraFlowError, ConfigError, WeightError, boundary

LOGGER = logging.getLogger("astraflow.trainer")

STATES_KEPT = 2
"""The newest state and the one before it."""

_STATE, _PROGRESS = "state.safetensors", "progress.json"

_DAMAGED, _AHEAD = "damaged_", "ahead_"
"""Before the name of a state that was moved aside: it is not as it was written, or newer than the ledger."""


class TrainerProgress(msgspec.Struct, frozen=True):
    """Where a trainer was when its state was kept."""

    step: int
    """The last trained step."""
    version: int
    """The number under which that step's weights were announced."""
    step_of: dict[int, int] = {}
    """Which step made each version so far."""
    digest: str = ""
    """xxh3-128 of the state's file, and of what is above, as they were written."""


def save_checkpoint(directory: Path, decoder: Decoder, tokenizer: Tokenizer) -> Path:
    """Write model and tokenizer to `directory`; readers never see half of it, and one that was there is replaced."""
    with _whole(directory) as draft:
        save_model(draft, decoder, decoder.config)
        tokenizer.save(draft)
    return directory


def save_state(root: Path, state: Mapping[str, Tensor], progress: TrainerProgress) -> Path:
    """Keep a state to continue from; older ones than the last `STATES_KEPT` go. It is on disk when this returns."""
    directory = root / f"step_{progress.step:06d}"
    with _whole(directory) as draft:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, draft / _STATE)
        progress = msgspec.structs.replace(progress, digest=_digest(draft, progress))
        (draft / _PROGRESS).write_bytes(msgspec.json.encode(progress))
        shutil.copymode(draft / _PROGRESS, draft / _STATE)  # safetensors makes it readable for its owner alone
        for name in (_STATE, _PROGRESS):
            _sync(draft / name)
    _sync(root)
    for old in _states(root)[:-STATES_KEPT]:
        shutil.rmtree(old)
    return directory


def load_state(
    root: Path, against: Callable[[TrainerProgress], str | None] = lambda progress: None
) -> tuple[dict[str, Tensor], TrainerProgress] | None:
    """Return the newest state that is as it was written and that nothing speaks `against`; None where none was kept.

    WeightError where none can be read, ConfigError where something speaks against all others. Later ones are moved
    aside: steps that are not continued from never happened.
    """
    passed_over: list[tuple[Path, str, AstraFlowError]] = []
    for directory in reversed(_states(root)):
        try:
            found = _read_state(directory)
        except WeightError as damage:
            passed_over.append((directory, _DAMAGED, damage))
            continue
        if (why := against(found[1])) is not None:
            passed_over.append((directory, _AHEAD, ConfigError(f"the state in {directory} {why}")))
            continue
        for later, mark, error in passed_over:
            aside = later.with_name(mark + later.name)
            shutil.rmtree(aside, ignore_errors=True)
            later.replace(aside)
            LOGGER.warning("%s; it is now %s, and %s is used instead", error, aside, directory)
        return found
    if passed_over:
        # the oldest one that is whole is the nearest to what would do
        raise next((error for _, mark, error in reversed(passed_over) if mark == _AHEAD), passed_over[0][2])
    return None


def oldest_step(root: Path) -> int:
    """The step of the oldest state that is kept: how far a trainer may go back."""
    return int(_states(root)[0].name.removeprefix("step_"))


def _read_state(directory: Path) -> tuple[dict[str, Tensor], TrainerProgress]:
    """A state and its progress; WeightError names the file that is not as it was written."""
    reading = directory / _PROGRESS
    try:
        progress = msgspec.json.decode(reading.read_bytes(), type=TrainerProgress)
        reading = directory / _STATE
        if (digest := _digest(directory, progress)) != progress.digest:
            raise WeightError(
                f"the state in {reading} is damaged: its digest is {digest}, {_PROGRESS} has '{progress.digest}'"
            )
        return load_file(reading), progress
    except (OSError, ValueError, SafetensorError) as error:  # msgspec's are ValueErrors
        raise WeightError(f"the state in {reading} cannot be read: {error}") from error


def _digest(directory: Path, progress: TrainerProgress) -> str:
    """xxh3-128 of the tensors' file in a directory, and of the progress that belongs to it."""
    with (
        (directory / _STATE).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as tensors,
    ):
        return parts_digest([tensors, msgspec.json.encode(msgspec.structs.replace(progress, digest=""))])


def _states(root: Path) -> list[Path]:
    """Whole states, the oldest first."""
    return sorted(root.glob("step_*")) if root.is_dir() else []


@contextmanager
def _whole(directory: Path) -> Iterator[Path]:
    """Give an empty directory beside it, under a name that no reader looks for, to be written and to take its place.

    Where writing fails nothing of it stays, and what was there before does; WeightError says what failed.
    """
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    try:
        with boundary(WeightError, f"{directory} cannot be written"):
            directory.parent.mkdir(parents=True, exist_ok=True)
            for left in directory.parent.glob(f".{directory.name}.*"):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            draft.mkdir()
            yield draft
            shutil.rmtree(directory, ignore_errors=True)
            draft.replace(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
