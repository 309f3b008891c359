"""Samples of evaluation rounds for people: `<run_dir>/evaluations/version_%06d.jsonl`, one JSON line a sample.

Of several policies a round scores all versions together, so its file is named by all: `solver_000003-checker_000007`.

The first rows of each dataset are kept, so the same prompts can be compared from version to version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from astraflow.core.data import Failed, Invalid
from astraflow.core.data.trajectory import EpisodeResult

Decode = Callable[[Sequence[int]], str]


class EvalLog:
    """Collects a round's samples; what `collect` returns writes its file."""

    def __init__(self, directory: Path | None, keep_rows: int, decode: Decode | None = None) -> None:
        """directory None: nothing is kept. decode: ids → text, where there is a tokenizer."""
        self._directory = directory if keep_rows > 0 else None
        self._keep_rows = keep_rows
        self._decode = decode
        self._lines: list[dict[str, Any]] = []

    def scored(self, dataset: str, row: int, task_id: str, greedy: bool, episodes: Sequence[EpisodeResult]) -> None:
        """A task of a round was scored."""
        if self._directory is None or row >= self._keep_rows:
            return
        where = {"dataset": dataset, "row": row, "task_id": task_id, "greedy": greedy}
        self._lines += [{**where, "sample": i, **self._sample(episode)} for i, episode in enumerate(episodes)]

    def clear(self) -> None:
        """Forget a round that has no result."""
        self._lines = []

    def collect(self, versions: Mapping[str, int]) -> Callable[[], None]:
        """Take what a round of these versions left; the returned function writes it (in any thread)."""
        lines, self._lines = self._lines, []
        lines.sort(key=lambda line: (line["dataset"], line["row"], line["greedy"], line["sample"]))
        return lambda: self._write(versions, lines)

    def _sample(self, episode: EpisodeResult) -> dict[str, Any]:
        if isinstance(episode, Failed):
            return {"reward": None, "why": episode.reason, "detail": episode.detail, "trajectories": []}
        reasons = [t.reward.reason for t in episode.trajectories if isinstance(t.reward, Invalid)]
        return {
            "reward": None if episode.outcome is None else episode.outcome.value,
            "why": "; ".join(reasons) if episode.outcome is None else "",
            "trajectories": [
                {
                    "model_id": t.model_id,
                    "agent": t.agent,
                    "stop": t.stop.value,
                    "tokens": t.sampled,
                    "text": None if self._decode is None else self._decode(t.arrays.ids.tolist()),
                }
                for t in episode.trajectories
            ],
        }

    def _write(self, versions: Mapping[str, int], lines: Sequence[dict[str, Any]]) -> None:
        if self._directory is None or not lines:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        whole = {"version": next(iter(versions.values()))} if len(versions) == 1 else {"versions": dict(versions)}
        body = b"".join(msgspec.json.encode({**whole, **line}) + b"\n" for line in lines)
        named = [(model_id if len(versions) > 1 else "version", number) for model_id, number in versions.items()]
        name = "-".join(f"{word}_{number:06d}" for word, number in named)
        (self._directory / f"{name}.jsonl").write_bytes(body)
