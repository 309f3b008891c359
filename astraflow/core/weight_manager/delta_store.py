"""The deltas that a sender keeps: some of the newest, within a count and a size.

Together with the double buffer they bound the sender's memory at 2.2 times the model: kept deltas take at most
KEPT_SHARE, one that is being made and its copy at most twice DELTA_SHARE.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from astraflow.core.data import Manifest
from astraflow.core.weight_manager.delta import EncodedDelta
from astraflow.core.weight_manager.segment import PAGE, anonymous_file, path_of, write_mark
from astraflow.core.weight_manager.version_folder import VersionFolder

DELTA_SHARE = 0.06
"""Longest delta, as a share of the full version; about 5% of bfloat16 elements changed."""
KEPT_SHARE = 0.08
SMALL = 2**16
"""Bytes that any model may spend on a delta: shares of a tiny model are smaller than a file's header."""


class MarkedFile:
    """Bytes in anonymous memory behind a page with a version's mark, as in a half of the double buffer.

    The descriptor lives as long as somebody holds this object: a stream that sends it, or the store.
    """

    def __init__(self, version: int, parts: Iterable[bytes]) -> None:
        self.fd = anonymous_file("astraflow-delta")
        self._closed_with_us = weakref.finalize(self, os.close, self.fd)
        write_mark(self.fd, PAGE, version)
        place = PAGE
        for part in parts:
            view = memoryview(part)
            while view:
                written = os.pwrite(self.fd, view, place)
                place += written
                view = view[written:]

    def read(self, length: int) -> bytes:
        """The first `length` bytes behind the mark."""
        return os.pread(self.fd, length, PAGE)

    @property
    def path(self) -> str:
        return path_of(self.fd)


@dataclass(frozen=True)
class StoredDelta:
    """A delta that can be pulled."""

    base: int
    version: int
    digest: str
    """xxh3-128 of the file."""
    length: int
    """Bytes."""
    changed: int
    memory: MarkedFile | None
    """Where transports tcp and shm take it from, if they are served; its first byte is at PAGE."""
    disk: Path | None
    """The file of transport disk, if that is served."""


class DeltaStore:
    """Keeps at most `count` deltas of a model whose full version has `model_bytes`."""

    def __init__(
        self, count: int, model_bytes: int, folder: VersionFolder | None = None, in_memory: bool = True
    ) -> None:
        self.longest = max(int(DELTA_SHARE * model_bytes), SMALL)
        self._most = max(int(KEPT_SHARE * model_bytes), SMALL)
        self._count = count
        self._folder = folder
        self._in_memory = in_memory
        self._kept: dict[int, StoredDelta] = {}
        """By base version, oldest first."""

    def add(self, base: Manifest, target: Manifest, encoded: EncodedDelta) -> StoredDelta:
        """Keep a new delta; the oldest ones go until count and size fit (it itself may be longer than the size)."""
        kept = list(self._kept.values())
        while kept and (len(kept) >= self._count or encoded.length + sum(d.length for d in kept) > self._most):
            gone = kept.pop(0)
            if self._folder is not None:
                self._folder.remove_delta(gone.version)
        new = StoredDelta(
            base=base.version,
            version=target.version,
            digest=encoded.digest,
            length=encoded.length,
            changed=encoded.changed,
            memory=MarkedFile(target.version, encoded.parts) if self._in_memory else None,
            disk=None if self._folder is None else self._folder.write_delta(target.version, encoded.parts),
        )
        # replaced, not changed: the control loop looks deltas up meanwhile
        self._kept = {delta.base: delta for delta in (*kept, new)}
        return new

    def on(self, base: int) -> StoredDelta | None:
        """The delta that starts from a version."""
        return self._kept.get(base)

    @property
    def newest(self) -> StoredDelta | None:
        return next(reversed(self._kept.values()), None)
