"""failures.json: why samples of a run have no reward, by kind."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The first sample of a kind, and how many there were."""

    reason: str
    """One word for counting: crash, timeout, engine, gold, nan."""
    detail: str
    """The exception and its innermost frames."""
    task_id: str
    """Of the dataset row."""
    prompt_id: int
    """The row's place among the rows of all rollout datasets."""
    group_id: int
    samples: int = 1
    """A power of two, or a little more by now: the file is written at each doubling."""

    @property
    def kind(self) -> tuple[str, str]:
        return self.reason, self.detail.partition("\n")[0]

    @property
    def place(self) -> tuple[int, str]:
        return self.prompt_id, self.task_id

    @property
    def why(self) -> tuple[str, str]:
        return self.reason, self.detail


def read_failures(path: Path) -> list[Failure]:
    """The kinds of a run, the most frequent first; none where nothing failed, or where the file is not whole."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[Failure])
    except (OSError, msgspec.MsgspecError):
        return []
    return sorted(found, key=lambda failure: -failure.samples)
