"""Files that several processes share: written whole or not at all, read line by line with torn lines left out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from astraflow.core.observability import lines

T = TypeVar("T")


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path`, whole and on the disk, in a folder that is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines.write_whole(path, data, fsync=True)


def write_lines(path: Path, records: Iterable[msgspec.Struct]) -> None:
    """Replace a JSONL file."""
    write_whole(path, b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def read_lines(path: Path, record: type[T]) -> list[T]:
    """The records of a JSONL file that decode; a torn or foreign line is left out, a missing file is empty."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    found: list[T] = []
    for line in data.split(b"\n"):
        try:
            found.append(msgspec.json.decode(line, type=record))
        except (msgspec.DecodeError, RecursionError):
            continue
    return found
