from __future__ import annotations

import resource
from pathlib import Path

import msgspec
import pytest

from astraflow.core.data import Manifest
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import lay_out
from astraflow.core.weight_manager.version_folder import VersionFolder
from astraflow.errors import WeightError


def write(folder: VersionFolder, number: int) -> Manifest:
    buffer = bytes([number]) * 8
    manifest = build_manifest("model0", number, lay_out([("w", (2,), "float32")]), memoryview(buffer))
    folder.write_version(manifest, memoryview(buffer))
    return manifest


def test_a_version_is_whole_with_its_manifest(tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path / "model0")
    manifest = write(folder, 3)
    path = folder.full(3)
    assert path is not None
    assert path.read_bytes() == b"\3" * 8
    assert msgspec.json.decode((path.parent / "manifest.json").read_bytes(), type=Manifest) == manifest
    assert folder.full(2) is None


def test_two_full_versions_stay_and_deltas_outlive_them(tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path)
    for number in range(1, 5):
        write(folder, number)
        folder.write_delta(number, [b"delta"])
    assert [number for number in range(1, 5) if folder.full(number)] == [3, 4]
    assert len(list(tmp_path.rglob("delta.safetensors"))) == 4
    folder.remove_delta(1)
    folder.remove_delta(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v00000002", "v00000003", "v00000004"]


def test_what_an_earlier_sender_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    write(VersionFolder(tmp_path), 3)
    (tmp_path / ".draft-4").mkdir()
    (tmp_path / "notes").mkdir()
    VersionFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WeightError, match="for weight versions"):
        VersionFolder(tmp_path / "file" / "inside")


def test_what_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path)
    write(folder, 1)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
    try:
        with pytest.raises((WeightError, OSError), match="File too large"):
            write(folder, 2)
        with pytest.raises((WeightError, OSError), match="File too large"):
            folder.write_delta(1, [b"a delta"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
