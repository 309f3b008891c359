"""Warnings and errors that a log gains, for a view: each kind at most once in a while, the rest is in the log."""

from __future__ import annotations

import re
from pathlib import Path

from astraflow.core.observability import log
from astraflow.core.observability.lifeline import shortened

REST_S = 60.0
"""Seconds in which lines of one kind, alike but for their numbers, are told once."""

_COMPLAINT = re.compile(r"\S+ \S+ (WARNING|ERROR|CRITICAL) ")
"""The beginning of such a line, as the log's format writes it."""


class Complaints:
    """Reads a growing log from where it ends now; a line still being written is left for the next call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._told: dict[str, float] = {}

    def read(self, now: float) -> list[str]:
        """What is to be told of the lines that were completed since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines = complete.decode("utf-8", errors="replace").splitlines()
        return [shortened(log.message(line)) for line in lines if _COMPLAINT.match(line) and self._is_news(line, now)]

    def _is_news(self, line: str, now: float) -> bool:
        kind = re.sub(r"\d+", "#", line)
        news = now - self._told.get(kind, -REST_S) >= REST_S
        if news:
            self._told[kind] = now
        return news
