"""What is written beside its place and moved in: on a full disk nothing of it stays, and what was there before does."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from astraflow.core.data import Manifest
from astraflow.core.model import new_model
from astraflow.core.observability.config import PrometheusConfig
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.sinks.base import LoggedRun, Record
from astraflow.core.observability.sinks.prometheus import PrometheusSink
from astraflow.core.text import tiny_tokenizer
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import lay_out
from astraflow.core.weight_manager.version_folder import VersionFolder
from astraflow.errors import WeightError
from astraflow.evolution.traces.files import write_whole
from astraflow.train_worker.checkpoint import TrainerProgress, save_checkpoint, save_state


def manifest_of(version: int) -> Manifest:
    return build_manifest("model0", version, lay_out([("w", (2,), "float32")]), memoryview(bytes(8)))


def state(root: Path) -> None:
    save_state(root, {"x": torch.zeros(9)}, TrainerProgress(3, 3))


def checkpoint(root: Path) -> None:
    save_checkpoint(root / "checkpoint", new_model("tiny-0.2m"), tiny_tokenizer())


def version(root: Path) -> None:
    VersionFolder(root).write_version(manifest_of(1), memoryview(bytes(8)))


def announcement(root: Path) -> None:
    RunDirectory(root).announce("dataflow", "http://127.0.0.1:1")


def metrics(root: Path) -> None:
    run = LoggedRun(experiment_name="e", trial_name="t", model_id="model0", directory=root)
    sink = PrometheusSink(PrometheusConfig(), run)
    try:
        sink.write(Record(step=1, time=0.0, stats={"reward": 1.0}))
    finally:
        sink.close()


def lines(root: Path) -> None:
    write_whole(root / "index.jsonl", b"a line\n")


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process grows beyond four bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def content(root: Path) -> dict[Path, bytes | None]:
    """Everything in a folder; folders hold None."""
    return {path: path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


@pytest.mark.parametrize("write", [state, checkpoint, version, announcement, metrics, lines])
def test_nothing_of_what_does_not_fit_stays(tmp_path: Path, write: Callable[[Path], None]) -> None:
    if write is not version:  # a sender owns its folder: it empties it
        write(tmp_path)
    announcement(tmp_path)
    before = content(tmp_path)
    with full_disk(), pytest.raises((WeightError, OSError, SafetensorError), match="File too large"):
        write(tmp_path)
    assert content(tmp_path) == before
