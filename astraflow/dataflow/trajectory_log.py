"""Sampled trajectories for people: a few trained and a few dropped ones of every step, one JSON line each.

`<run_dir>/trajectories/step_%06d.jsonl`, of further models `step_%06d_<model_id>.jsonl`; `outcome` says "trained" or
why the group was dropped. Nothing in a run reads them back; the report shows them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from astraflow.core.data import Group, Trajectory, Value
from astraflow.core.data.trajectory import EpisodeResult
from astraflow.core.observability.kept import PER_GROUP, PER_STEP
from astraflow.core.observability.lines import write_whole
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.curation import Occurrence
from astraflow.dataflow.failure_log import FailureLog
from astraflow.dataflow.ledger import DropReason

log = logging.getLogger(__name__)

UNDECODABLE = "\ufffd"
"""What a decoder shows for bytes that are no whole character yet."""


@dataclass
class _Step:
    """What is kept of one model's step."""

    number: int = 0
    trained: list[tuple[Group, Trajectory]] = field(default_factory=list)
    dropped: list[tuple[Group, Trajectory, str]] = field(default_factory=list)


class TrajectoryLog:
    """Collects samples; `collect` gives a step's file to write."""

    def __init__(
        self,
        run_dir: RunDirectory | None,
        decode: Callable[[Sequence[int]], str] | None = None,
        further: Collection[str] = (),
    ) -> None:
        """run_dir None: nothing is kept. decode: ids → text, where there is a tokenizer.

        further: models beside the first; their files say so.
        """
        self._run_dir = run_dir
        self._decode = decode
        self._further = further
        self._steps: dict[str, _Step] = defaultdict(_Step)
        self._failures = FailureLog(run_dir)

    def trained(self, group: Group, step: int) -> None:
        """A group of the batch of `step` was trained."""
        kept = self._steps[group.model_id]
        kept.number = step
        room = PER_STEP - len(kept.trained)
        kept.trained += [(group, t) for t in group.trajectories[: min(PER_GROUP, max(0, room))]]

    def dropped(self, group: Group, reason: DropReason) -> None:
        """A group was dropped; the first of each step are kept."""
        kept = self._steps[group.model_id]
        room = PER_STEP - len(kept.dropped)
        kept.dropped += [(group, t, reason.value) for t in group.trajectories[: min(PER_GROUP, max(0, room))]]

    def finished(self, occurrence: Occurrence, episodes: Iterable[EpisodeResult]) -> None:
        """A group came back; why samples of it have no reward is kept."""
        self._failures.observe(occurrence, episodes)

    def collect(self, model_id: str) -> Callable[[], None]:
        """Take what a step of a model left; the returned function writes it (in any thread)."""
        kept = self._steps[model_id]
        self._steps[model_id] = _Step(kept.number)
        samples = [(group, t, "trained") for group, t in kept.trained] + kept.dropped
        return lambda: self._write(kept.number, model_id, samples)

    def _write(self, step: int, model_id: str, samples: Sequence[tuple[Group, Trajectory, str]]) -> None:
        if self._run_dir is None or not samples:
            return
        path = self._run_dir.kept_trajectories(step, model_id if model_id in self._further else None)
        lines = [msgspec.json.encode(self._line(step, *sample)) for sample in samples]
        try:
            write_whole(path, b"\n".join(lines) + b"\n")
        except OSError as error:  # people read this, and it ends no run
            log.warning("the sampled trajectories of step %d are not kept: %s: %s", step, path, error.strerror)

    def _line(self, step: int, group: Group, trajectory: Trajectory, outcome: str) -> dict[str, Any]:
        arrays = trajectory.arrays
        ids = arrays.ids.tolist()
        text, pieces = self._texts(ids)
        reward = trajectory.reward
        return {
            "step": step,
            "outcome": outcome,
            "task_id": group.task_id,
            "prompt_id": group.prompt_id,
            "group_id": group.group_id,
            "sample_id": trajectory.sample_id,
            "model_id": group.model_id,
            "agent": group.agent,
            "reward": reward.value if isinstance(reward, Value) else None,
            "reward_parts": reward.parts if isinstance(reward, Value) else {},
            "group_reward_mean": group.reward_mean,
            "lost": group.lost,
            "stop": trajectory.stop.value,
            "text": text,
            "pieces": pieces,
            "ids": ids,
            "mask": arrays.mask.tolist(),
            "versions": arrays.versions.tolist(),
            "logprobs": [round(x, 5) for x in arrays.logprobs.tolist()],
        }

    def _texts(self, ids: Sequence[int]) -> tuple[str | None, list[str] | None]:
        """Text and pieces; what cannot be decoded says so."""
        if self._decode is None:
            return None, None
        try:
            return self._decode(ids), token_texts(self._decode, ids)
        except Exception as error:  # a tokenizer of anybody's, and ids of anybody's
            return f"(cannot be decoded: {type(error).__name__}: {error})", None


def token_texts(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """Return the text of each token; a character that spans several tokens is shown at the last of them."""
    texts: list[str] = []
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = decode(pending)
        whole = not text.endswith(UNDECODABLE) or len(pending) == 4  # UTF-8 takes at most four bytes
        texts.append(text if whole else "")
        if whole:
            pending = []
    return texts
