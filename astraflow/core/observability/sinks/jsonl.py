"""metrics.jsonl: one JSON object a step, {"step", "time", …statistics}; a value that is not finite is null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from astraflow.core.observability.lines import LineFile
from astraflow.core.observability.sinks.base import Record
from astraflow.errors import DataError


class JsonlSink:
    """Appends to `path`; each line is complete when `write` returns, or not there at all, and OSError."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)

    def write(self, record: Record) -> None:
        line = {"step": record.step, "time": record.time, **record.stats}
        self._file.append(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        self._file.close()


class JsonlReader:
    """Reads a growing metrics.jsonl piece by piece; a line still being written is left for the next call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the lines that were completed since the last call; none where the file does not exist yet.

        DataError: a line that is no JSON object.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        try:
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in complete.splitlines()]
        except msgspec.MsgspecError as error:
            raise DataError(f"{self._path}: expected a JSON object a line: {error}") from error
