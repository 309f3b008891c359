"""Files that several processes share: written whole or not at all, read line by line with torn lines left out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path` so that a reader, or a kill at any moment, meets the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # of a full disk


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
