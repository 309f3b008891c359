"""Versions on a shared disk: a folder each, complete from the moment it has its name.

    ROOT/v00000007/weights.bin       the version's buffer, as the manifest lays it out
    ROOT/v00000007/manifest.json
    ROOT/v00000007/delta.safetensors where there is a delta to this version

A folder is filled under another name and renamed; so is the delta, which comes later. A reader that has opened a file
of a folder that is removed reads on undisturbed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from astraflow.core.data import Manifest
from astraflow.errors import WeightError

FULL_KEPT = 2
"""Full versions on disk: as many as the double buffer holds."""
_FULL, _DELTA, _MANIFEST = "weights.bin", "delta.safetensors", "manifest.json"
_DRAFT = ".draft-"


class VersionFolder:
    """The sending side of one model; whoever makes it owns the folder and removes what an earlier sender left."""

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
            for old in root.iterdir():
                if old.name.startswith((_DRAFT, "v")):
                    shutil.rmtree(old)
        except OSError as error:
            raise WeightError(f"folder {root} for weight versions: {error.strerror}") from error

    @property
    def root(self) -> Path:
        return self._root

    def write_version(self, manifest: Manifest, buffer: memoryview) -> None:
        """Make a full version available and remove the full versions that are one too many."""
        draft = self._root / f"{_DRAFT}{manifest.version}"
        with _whole(draft, self._folder(manifest.version)):
            draft.mkdir()
            _write(draft / _FULL, [buffer[: manifest.nbytes]])
            _write(draft / _MANIFEST, [msgspec.json.encode(manifest)])
        full = [path for path in self._root.glob("v*") if (path / _FULL).exists()]
        for path in sorted(full)[:-FULL_KEPT]:
            (path / _FULL).unlink()
            if not (path / _DELTA).exists():
                shutil.rmtree(path)

    def write_delta(self, version: int, parts: Iterable[bytes | memoryview]) -> Path:
        """Add the delta to a version that is there; returns its path."""
        path = self._folder(version) / _DELTA
        draft = path.with_name(_DRAFT + _DELTA)
        with _whole(draft, path):
            _write(draft, parts)
        return path

    def remove_delta(self, version: int) -> None:
        folder = self._folder(version)
        (folder / _DELTA).unlink(missing_ok=True)
        if folder.exists() and not (folder / _FULL).exists():
            shutil.rmtree(folder)

    def full(self, version: int) -> Path | None:
        """Where a full version lies, if it does."""
        path = self._folder(version) / _FULL
        return path if path.exists() else None

    def _folder(self, version: int) -> Path:
        return self._root / f"v{version:08d}"


@contextmanager
def _whole(draft: Path, place: Path) -> Iterator[None]:
    """Move what is written to `draft` to its place; where that fails (a full disk), leave nothing of it there."""
    try:
        yield
        draft.replace(place)
    except OSError as error:
        raise WeightError(f"{place} cannot be written: {error.strerror}") from error
    finally:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        draft.unlink(missing_ok=True)


def _write(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that other hosts see whole once it is renamed: NFS keeps what was synced before the name."""
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
