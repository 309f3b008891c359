"""A sample of a run's episodes to read: even over steps, of every outcome, with the log-prob gap of each token.

The gap is the trainer's logprob less the engine's. For tokens that the version just trained on sampled it is the
numerical mismatch of the two programs; for older ones the policy has moved as well. Only trained trajectories have one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from astraflow.core.observability.kept import TrainerLogprobs
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import DataError, boundary

HEAD_TOKENS, TAIL_TOKENS = 300, 200
"""Tokens that are shown of a longer trajectory."""


class KeptTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One line of trajectories/step_*.jsonl, as far as it is shown."""

    step: int
    outcome: str
    task_id: str = ""
    sample_id: int
    model_id: str = ""
    reward: float | None = None
    group_reward_mean: float = 0.0
    stop: str = ""
    ids: list[int]
    mask: list[int]
    versions: list[int]
    logprobs: list[float]
    pieces: list[str] | None = None


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory for the page; the lists are aligned, one entry a shown token."""

    step: int
    outcome: str
    """"trained", or why its group was dropped."""
    task: str
    model: str
    reward: float | None
    group_mean: float
    stop: str
    sampled: int
    """Sampled tokens of the whole trajectory."""
    texts: list[str]
    mask: list[int]
    versions: list[int]
    gaps: list[float | None]
    """None where the token was not sampled, or the trajectory not trained on."""
    hidden: int = 0
    """Tokens left out in the middle."""
    hidden_at: int = 0
    """The shown token that they come before."""


def sample_episodes(run: RunDirectory, most: int) -> list[Episode]:
    """Return at most `most` episodes in the order of their steps. DataError names a file that is not readable."""
    files = sorted(run.trajectories.glob("step_*.jsonl"))
    chosen = [files[i] for i in _evenly(len(files), most)]
    episodes: list[Episode] = []
    for number, path in enumerate(chosen):
        share = (most * (number + 1)) // len(chosen) - (most * number) // len(chosen)
        with boundary(DataError, str(path)):
            kept = [msgspec.json.decode(line, type=KeptTrajectory) for line in path.read_bytes().splitlines()]
            gaps = _gaps(run, kept)
            episodes += [_episode(kept[i], gaps[i]) for i in _of_every_outcome(kept, share, start=number)]
    return episodes


def _evenly(n: int, most: int) -> list[int]:
    """At most `most` of the indices below n, the first and the last among them."""
    if n <= most:
        return list(range(n))
    return sorted({round(i * (n - 1) / (most - 1)) for i in range(most)}) if most > 1 else [0]


def _of_every_outcome(kept: Sequence[KeptTrajectory], share: int, start: int) -> list[int]:
    """Indices of `share` trajectories, taking outcomes in turns; `start` says whose turn is first."""
    by_outcome: dict[str, deque[int]] = defaultdict(deque)
    for index, trajectory in enumerate(kept):
        by_outcome[trajectory.outcome].append(index)
    queues = list(by_outcome.values())
    taken: list[int] = []
    turn = start
    while len(taken) < min(share, len(kept)):
        queue = queues[turn % len(queues)]
        turn += 1
        if queue:
            taken.append(queue.popleft())
    return sorted(taken)


def _gaps(run: RunDirectory, kept: Sequence[KeptTrajectory]) -> list[list[float | None]]:
    """The gaps of each trajectory's tokens."""
    known: dict[tuple[str, int], deque[list[float]]] = defaultdict(deque)
    for model_id, step in {(t.model_id, t.step) for t in kept if t.outcome == "trained" and t.model_id}:
        for found in _trainer_logprobs(run.trainer_logprobs(step, model_id)):
            known[model_id, found.sample_id].append(found.logprobs)
    gaps: list[list[float | None]] = []
    for t in kept:
        theirs = known.get((t.model_id, t.sample_id)) if t.outcome == "trained" else None
        trainers = theirs.popleft() if theirs else []
        aligned = len(trainers) == len(t.ids)
        gaps.append([trainers[i] - t.logprobs[i] if aligned and m else None for i, m in enumerate(t.mask)])
    return gaps


def _trainer_logprobs(path: Path) -> list[TrainerLogprobs]:
    if not path.is_file():
        return []
    with boundary(DataError, str(path)):
        return [msgspec.json.decode(line, type=TrainerLogprobs) for line in path.read_bytes().splitlines()]


def _episode(kept: KeptTrajectory, gaps: list[float | None]) -> Episode:
    texts = kept.pieces if kept.pieces is not None else [f" {token}" for token in kept.ids]
    hidden = max(0, len(texts) - HEAD_TOKENS - TAIL_TOKENS)

    def shown(values: list[Any]) -> list[Any]:
        return values if not hidden else values[:HEAD_TOKENS] + values[-TAIL_TOKENS:]

    return Episode(
        step=kept.step,
        outcome=kept.outcome,
        task=kept.task_id,
        model=kept.model_id,
        reward=kept.reward,
        group_mean=kept.group_reward_mean,
        stop=kept.stop,
        sampled=sum(kept.mask),
        texts=shown(texts),
        mask=shown(kept.mask),
        versions=shown(kept.versions),
        gaps=[None if gap is None else round(gap, 5) for gap in shown(gaps)],
        hidden=hidden,
        hidden_at=HEAD_TOKENS,
    )
