"""summary.json: a run in a few numbers, computed from metrics.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from astraflow.core.observability.lines import write_whole
from astraflow.launch import metrics
from astraflow.launch.metrics import Accuracy, Record


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What summary.json holds; shares are fractions."""

    accuracy_before: dict[str, float | None]
    """{sampled, greedy} before the first step; empty where that was not evaluated."""
    accuracy_after: dict[str, float | None]
    """{sampled, greedy} of the last evaluation; empty where there was none."""
    accuracy_after_interval: tuple[float, float] | None
    """95% interval of the sampled share, over prompts; null unless there is one evaluation dataset."""
    eval_count: int
    """Held-out problems that the last evaluation scored."""
    eval_rounds: int
    """Evaluations in the run."""
    rl_steps: int
    """Training steps."""
    wall_s: float
    """Seconds from the launcher's start to its end, the base model included."""
    max_trained_staleness: int
    """Steps between the oldest trained token's version and the step that trained it, at most."""
    staleness_bound: int
    """max_staleness of the configuration."""
    weight_updates: int
    """Versions published after version 0."""
    trajectories_with_two_versions: int
    """Trained trajectories that a weight swap ran through."""
    rollout_tokens_per_s: float
    """Sampled tokens, the mean over steps."""
    train_tokens_per_s: float
    """Tokens through forward and backward, the mean over steps."""
    steps_per_min: float
    """Training steps from the first to the last, without evaluations."""
    dropped: dict[str, int]
    """Groups that did not train, by reason."""


def summarise(records: Sequence[Record], staleness_bound: int, wall_s: float) -> Summary:
    """Compute the summary of one model's records."""
    records = metrics.surviving(records)
    steps = metrics.training(records)
    rounds = [(found, record) for record in records if (found := metrics.accuracy(record)) is not None]
    seconds = metrics.step_seconds(records)
    versions = metrics.values(records, metrics.VERSION)
    return Summary(
        accuracy_before=_shares(rounds[0][0] if rounds and rounds[0][1]["step"] == 0 else None),
        accuracy_after=_shares(rounds[-1][0] if rounds else None),
        accuracy_after_interval=metrics.interval(rounds[-1][1]) if rounds else None,
        eval_count=metrics.evaluated_problems(rounds[-1][1]) if rounds else 0,
        eval_rounds=len(rounds),
        rl_steps=len(steps),
        wall_s=round(wall_s, 2),
        max_trained_staleness=int(max(metrics.values(steps, metrics.STALENESS_MAX), default=0)),
        staleness_bound=staleness_bound,
        weight_updates=int(max(versions, default=0)),
        trajectories_with_two_versions=int(sum(metrics.values(steps, metrics.TWO_VERSIONS))),
        rollout_tokens_per_s=_mean(metrics.values(steps, metrics.ROLLOUT_TOKENS_PER_S)),
        train_tokens_per_s=_mean(metrics.values(steps, metrics.TRAIN_TOKENS_PER_S)),
        steps_per_min=round((len(steps) - 1) * 60.0 / seconds, 2) if seconds > 0 else 0.0,
        dropped=metrics.dropped(records),
    )


def write_summary(summary: Any, path: Path) -> None:
    """Write any struct or plain value as readable JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")


def _shares(accuracy: Accuracy | None) -> dict[str, float | None]:
    return {} if accuracy is None else accuracy.values()


def _mean(numbers: Sequence[float]) -> float:
    return round(sum(numbers) / len(numbers), 1) if numbers else 0.0
