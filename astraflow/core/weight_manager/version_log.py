"""What a run's directory remembers of its weight versions, so that provenance can be checked afterwards.

    RUN/versions/published-MODEL.jsonl   by the trainer: a Catalogue, then a PublishedVersion per version
    RUN/versions/served-RAAS.jsonl       by each RaaS: a ServedVersion per version that its engine proved; alarms

Lines are appended and flushed; a last line that a crash cut is passed over by readers, and cut off by who appends next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from astraflow.core.data import Manifest
from astraflow.core.observability.lines import LineFile
from astraflow.errors import DataError


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The tensors of all versions that follow."""

    model_id: str
    tensors: tuple[tuple[str, tuple[int, ...], str, tuple[str, ...]], ...]
    """(name, shape, dtype, aliases), in manifest order."""


class PublishedVersion(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A version that the trainer published."""

    model_id: str
    version: int
    digest: str
    tensors: tuple[str, ...]
    """Their digests, in the catalogue's order."""
    bytes: int
    time: float
    """Unix seconds."""
    restored: bool = False
    """By a trainer that came back."""


class ServedVersion(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A version that an engine proved to hold."""

    raas: str
    model_id: str
    version: int
    digest: str
    mode: str
    """full or delta"""
    bytes: int
    """That travelled."""
    timing: dict[str, float]
    """Seconds by phase."""
    canary_gap: float | None
    """Mean absolute difference of the canaries' logprobs to the trainer's; None: nothing to compare."""
    time: float


class Alarm(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something about a version that must not happen."""

    raas: str
    model_id: str
    version: int
    reason: str
    time: float


Line = Catalogue | PublishedVersion | ServedVersion | Alarm


class VersionLog:
    """Appends to one file; made on first use."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._catalogued: Catalogue | None = None

    def published(self, manifest: Manifest) -> None:
        catalogue = Catalogue(
            model_id=manifest.model_id,
            tensors=tuple((entry.name, entry.shape, entry.dtype, entry.aliases) for entry in manifest.tensors),
        )
        if catalogue != self._catalogued:
            self._append(catalogue)
            self._catalogued = catalogue
        self._append(
            PublishedVersion(
                model_id=manifest.model_id,
                version=manifest.version,
                digest=manifest.digest,
                tensors=tuple(entry.digest for entry in manifest.tensors),
                bytes=manifest.nbytes,
                time=self._clock(),
                restored=manifest.restored,
            )
        )

    def served(
        self,
        raas: str,
        manifest: Manifest,
        mode: str,
        length: int,
        timing: dict[str, float],
        canary_gap: float | None,
    ) -> None:
        self._append(
            ServedVersion(
                raas=raas,
                model_id=manifest.model_id,
                version=manifest.version,
                digest=manifest.digest,
                mode=mode,
                bytes=length,
                timing=timing,
                canary_gap=canary_gap,
                time=self._clock(),
            )
        )

    def alarm(self, raas: str, model_id: str, version: int, reason: str) -> None:
        self._append(Alarm(raas=raas, model_id=model_id, version=version, reason=reason, time=self._clock()))

    def _append(self, line: Line) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(LineFile(self._path)) as file:
            file.append(msgspec.json.encode(line) + b"\n")


def published_log(run: Path, model_id: str) -> Path:
    return run / "versions" / f"published-{model_id}.jsonl"


def served_log(run: Path, raas: str) -> Path:
    return run / "versions" / f"served-{raas}.jsonl"


def read_logs(run: Path) -> Iterator[Line]:
    """Every line of a run's logs, file by file. DataError: a line that is none (the last of a file excepted)."""
    for path in sorted((run / "versions").glob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines[:-1], 1):  # what follows the last newline was cut by a crash
            try:
                yield msgspec.json.decode(line, type=Line)
            except msgspec.MsgspecError as error:
                raise DataError(f"{path}, line {number}: {error}") from error
