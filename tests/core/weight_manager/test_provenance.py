"""What `astraflow weights verify` finds, and that it finds nothing in a run that is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from astraflow.core.data import Manifest
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import lay_out
from astraflow.core.weight_manager.provenance import changed_tensors, history, verify
from astraflow.core.weight_manager.version_log import Alarm, VersionLog, published_log, read_logs, served_log
from astraflow.errors import DataError

LAYOUT = lay_out([("embed", (2, 3), "float32"), ("w", (4,), "float32")], {"embed": ("head",)})


def manifest(number: int, seed: int | None = None) -> Manifest:
    values = np.zeros(32, np.float32)
    values[16:20] = number if seed is None else seed
    return build_manifest("model0", number, LAYOUT, memoryview(values.view(np.uint8).data))


class Run:
    """A run directory with three versions, all of them proven by one RaaS."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.published = VersionLog(published_log(path, "model0"), lambda: 1.0)
        self.served = VersionLog(served_log(path, "raas-0"), lambda: 2.0)
        for number in range(3):
            self.published.published(manifest(number))
            self.serve(manifest(number))

    def serve(self, what: Manifest) -> None:
        self.served.served("raas-0", what, "full", what.nbytes, {"pull_s": 0.1}, 0.001)

    def keep(self, outcome: str, versions: list[int], mask: list[int]) -> None:
        (self.path / "trajectories").mkdir(exist_ok=True)
        line: dict[str, Any] = {"model_id": "model0", "step": 1, "sample_id": 7, "outcome": outcome}
        with (self.path / "trajectories" / "step_000001.jsonl").open("ab") as file:
            file.write(msgspec.json.encode({**line, "versions": versions, "mask": mask}) + b"\n")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_run_that_is_right(run: Run) -> None:
    run.keep("trained", [-1, 0, 1], [0, 1, 1])
    result = verify(run.path)
    assert (result.versions, result.served, result.tokens, result.problems) == (3, 3, 2, [])


Spoil = Callable[[Run], None]
SPOILT: list[tuple[Spoil, str]] = [
    (lambda run: run.published.published(manifest(2, seed=9)), "version 2 was published after version 2"),
    (lambda run: run.published.published(manifest(3, seed=2)), "the version moved from 2 to 3, the digest did not"),
    (lambda run: run.serve(manifest(1, seed=9)), "raas-0 served version 1 with digest"),
    (lambda run: run.serve(manifest(8)), "published: never published"),
    (lambda run: run.served.alarm("raas-0", "model0", 1, "canaries"), "alarm of raas-0 at version 1: canaries"),
    (lambda run: run.keep("trained", [0, 5], [1, 1]), "trained with tokens of version 5, which no engine has proven"),
    (
        lambda run: run.published.published(msgspec.structs.replace(manifest(3), digest="0" * 32)),
        "the digest of version 3 is not that of its tensors",
    ),
]


@pytest.mark.parametrize(("spoil", "words"), SPOILT, ids=[words for _, words in SPOILT])
def test_what_is_wrong_is_named(run: Run, spoil: Spoil, words: str) -> None:
    spoil(run)
    assert [problem for problem in verify(run.path).problems if words in problem]


def test_other_files_beside_the_trajectories_are_not_read(run: Run) -> None:
    run.keep("trained", [1], [1])
    (run.path / "trajectories" / "logprobs_000001_model0.jsonl").write_bytes(b'{"sample_id": 1}\n')
    assert verify(run.path).tokens == 1
    (run.path / "trajectories" / "step_000002.jsonl").write_bytes(b'{"sample_id": 1}\n')
    with pytest.raises(DataError, match=r"step_000002\.jsonl, line 1"):
        verify(run.path)


def test_a_sample_that_was_not_trained_is_counted_as_quarantined(run: Run) -> None:
    run.keep("lineage", [5], [1])
    run.keep("trained", [5, 1], [0, 1])  # not a sampled token
    result = verify(run.path)
    assert (result.quarantined, result.problems) == (1, [])


def test_a_checkpoint_is_told_by_its_digests(run: Run) -> None:
    def save(name: str, w: np.ndarray) -> None:
        (run.path / "checkpoints" / name).mkdir(parents=True)
        tensors = {"embed": np.zeros((2, 3), np.float32), "w": w}
        save_file(tensors, run.path / "checkpoints" / name / "model.safetensors")

    save("step_000002", np.full(4, 2, np.float32))
    save("step_000003", np.full(4, 77, np.float32))
    save("half", np.full(4, 2, np.float16))
    result = verify(run.path)
    assert result.checkpoints == {"step_000002": 2, "step_000003": None, "half": None}
    assert result.problems == ["checkpoint step_000003 is none of the published versions"]


def test_a_checkpoint_that_is_not_whole_is_wrong(run: Run) -> None:
    def folder(name: str) -> Path:
        (run.path / "checkpoints" / name).mkdir(parents=True)
        return run.path / "checkpoints" / name

    save_file({"head": np.zeros((2, 3), np.float32)}, folder("part") / "model.safetensors")
    (folder("garbage") / "model.safetensors").write_bytes(b"\xff" * 100)
    (folder("empty") / "model.safetensors").touch()
    (folder("removed") / "config.json").touch()
    folder("being_written")
    result = verify(run.path)
    assert [problem.partition(" (")[0].partition(": Value")[0] for problem in result.problems][-2:] == [
        "checkpoint part lacks 1 tensors: w",
        "checkpoint removed holds no weights",
    ]
    assert [name for name in ("empty", "garbage") if f"{name}/model.safetensors is no safet" in str(result.problems)]
    assert len(result.problems) == 4


def test_a_float32_checkpoint_is_told_on_a_bfloat16_wire(tmp_path: Path) -> None:
    values = np.array([1.0, -0.0, 1.00390625, 3.3e38, np.inf, -1e-40], np.float32)
    bits = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().tobytes()
    wire = build_manifest("model0", 4, lay_out([("w", (6,), "bfloat16")]), memoryview(bits))
    VersionLog(published_log(tmp_path, "model0")).published(wire)
    (tmp_path / "checkpoints" / "step_000004").mkdir(parents=True)
    save_file({"w": values}, tmp_path / "checkpoints" / "step_000004" / "model.safetensors")
    assert verify(tmp_path).checkpoints == {"step_000004": 4}


def test_a_trainer_that_came_back_may_publish_the_same_bytes(run: Run) -> None:
    run.published.published(msgspec.structs.replace(manifest(3, seed=2), restored=True))
    assert verify(run.path).problems == []


def test_changed_tensors_are_named_under_all_their_names(run: Run) -> None:
    model = history(run.path)["model0"]
    assert changed_tensors(model, model.published[0]) is None
    assert changed_tensors(model, model.published[1]) == ["w"]
    assert set(model.named_digests(model.published[0])) == {"embed", "head", "w"}


def test_a_line_that_a_crash_cut_is_passed_over_and_a_broken_one_is_not(run: Run) -> None:
    path = published_log(run.path, "model0")
    path.write_bytes(path.read_bytes() + b'{"type": "Publ')
    assert verify(run.path).versions == 3
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(DataError, match=r"published-model0\.jsonl, line 5"):
        verify(run.path)


def test_a_directory_without_versions_is_no_proof(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no log of weight versions"):
        verify(tmp_path)


def test_a_line_that_a_crash_cut_is_not_glued_to_the_next(tmp_path: Path) -> None:
    for name in (published_log(tmp_path, "model0"), served_log(tmp_path, "raas-0")):
        name.parent.mkdir(exist_ok=True)
        name.write_bytes(b'{"type":"Alarm","raas":"raas-0","mod')
    VersionLog(published_log(tmp_path, "model0")).alarm("raas-0", "model0", 0, "first")
    VersionLog(served_log(tmp_path, "raas-0")).alarm("raas-0", "model0", 0, "second")
    assert [line.reason for line in read_logs(tmp_path) if isinstance(line, Alarm)] == ["first", "second"]
