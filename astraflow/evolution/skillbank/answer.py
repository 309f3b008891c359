"""What a command says: for people as lines, for programs as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from astraflow.evolution.skillbank.problem import Problem


@dataclass(frozen=True)
class Answer:
    """A command's result."""

    lines: Sequence[str] = ()
    """For people, on standard output."""
    values: dict[str, Any] = field(default_factory=dict)
    """For programs: what `--json` prints besides ok, errors and warnings."""
    errors: Sequence[Problem] = ()
    """With any of these the exit code is 1."""
    warnings: Sequence[Problem] = ()
    document: dict[str, Any] | None = None
    """A JSON object that is the whole answer, with and without `--json`: a review."""

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        if self.document is not None:
            return self.document
        return {
            "ok": not self.errors,
            **self.values,
            "errors": [problem.as_json() for problem in self.errors],
            "warnings": [problem.as_json() for problem in self.warnings],
        }
