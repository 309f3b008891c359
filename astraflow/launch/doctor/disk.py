"""Room and rights for the run directory and the base model's cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from astraflow.launch.base_model import cache_path
from astraflow.launch.doctor.finding import Finding, error, ok, unless
from astraflow.launch.doctor.machine import GIB
from astraflow.launch.doctor.memory import WIDTH, parameters
from astraflow.launch.doctor.subject import Subject

CHECK = "disk"
RECORDS = 200 * 2**20
"""Bytes for metrics, spans, logs and sampled trajectories of a long run."""


class Usage(Protocol):
    """Of `shutil.disk_usage`."""

    @property
    def free(self) -> int: ...


def check(subject: Subject, usage: Callable[[Path], Usage] = shutil.disk_usage) -> list[Finding]:
    """`usage` tells a file system's free bytes."""
    root = Path(subject.config.experiment.fileroot).expanduser().absolute()
    wanted = {root: ("experiment.fileroot", checkpoint_bytes(subject) + RECORDS)}
    base = subject.config.base_model
    if base is not None and not cache_path(base).is_dir():
        wanted[cache_path(base)] = ("base_model", _model_bytes(subject))
    found = []
    for place, (key, needed) in wanted.items():
        existing = next(folder for folder in (place, *place.parents) if folder.exists())
        free = usage(existing).free
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            found.append(error(CHECK, f"{existing} cannot be written to", f"another {key}, or its rights", key))
        elif free < needed:
            found.append(
                error(
                    CHECK,
                    f"{place} needs about {needed / GIB:.2f} GiB, {free / GIB:.2f} are free",
                    "free some space, write fewer checkpoints (saver.freq_steps), or put it elsewhere",
                    key,
                )
            )
    return unless(found, ok(CHECK, f"about {wanted[root][1] / GIB:.2f} GiB in {root}, {_free(root, usage):.1f} free"))


def checkpoint_bytes(subject: Subject) -> int:
    """Bytes of all checkpoints that a run keeps: one at the end, and one every `freq_steps`."""
    total = 0
    for trainer in subject.config.trainers.values():
        steps, freq = trainer.total_train_steps, trainer.saver.freq_steps
        count = 1 if freq is None else steps // freq + (steps % freq > 0)
        total += count * _model_bytes(subject)
    return total


def _model_bytes(subject: Subject) -> int:
    width = WIDTH[subject.config.experiment.dtype]
    return parameters(subject.model) * width if subject.model is not None else 0


def _free(place: Path, usage: Callable[[Path], Usage]) -> float:
    return usage(next(folder for folder in (place, *place.parents) if folder.exists())).free / GIB
