"""What metrics.jsonl says about a run: the train worker's per-step statistics, read by their names.

Shares are fractions here and percent in the evaluation's own results, as the protocol has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
"""One line of metrics.jsonl."""

EVAL = "eval/"
SAMPLED = "/avg@k"
GREEDY = "/greedy"
TOTAL = "/total"
REWARD = "rollout/reward_mean"
STALENESS_MAX = "staleness/max"
STALENESS_MEAN = "staleness/avg"
VERSION = "version"
TWO_VERSIONS = "batch/trajectories_with_two_versions"
ROLLOUT_TOKENS_PER_S = "rollout/tokens_per_s"
TRAIN_TOKENS_PER_S = "train/tokens_per_s"
DROPPED = "dropped/"
EVAL_SECONDS = "timeperf/eval"


@dataclass(frozen=True)
class Accuracy:
    """Shares of held-out problems answered rightly, the mean over the evaluation datasets."""

    sampled: float
    """Mean over k samples at the evaluation workflow's temperature."""
    greedy: float | None
    """None where no dataset is scored greedily."""

    def values(self) -> dict[str, float | None]:
        return {"sampled": self.sampled, "greedy": self.greedy}

    def __str__(self) -> str:
        greedy = "" if self.greedy is None else f", greedy {self.greedy:.1%}"
        return f"sampled {self.sampled:.1%}{greedy}"


def accuracy(record: Record) -> Accuracy | None:
    """The evaluation in a record; None where it holds none."""
    sampled, greedy = _shares(record, SAMPLED), _shares(record, GREEDY)
    return Accuracy(_mean(sampled), _mean(greedy) if greedy else None) if sampled else None


def interval(record: Record) -> tuple[float, float] | None:
    """The 95% interval of the sampled share, from a bootstrap over prompts; None unless one dataset is evaluated."""
    low, high = _shares(record, SAMPLED + "_low"), _shares(record, SAMPLED + "_high")
    return (low[0], high[0]) if len(low) == len(high) == 1 else None


def evaluated_problems(record: Record) -> int:
    """Problems scored in a record's evaluation, over all datasets."""
    return int(sum(value for name, value in record.items() if name.startswith(EVAL) and name.endswith(TOTAL)))


def dropped(records: Sequence[Record]) -> dict[str, int]:
    """Groups dropped in the run, by reason; the counters run on from step to step."""
    last = records[-1] if records else {}
    return {name.removeprefix(DROPPED): int(value) for name, value in last.items() if name.startswith(DROPPED)}


def step_seconds(records: Sequence[Record]) -> float:
    """Wall time from the first to the last training step, without evaluations."""
    steps = training(records)
    if len(steps) < 2:
        return 0.0
    evaluating = sum(record.get(EVAL_SECONDS) or 0.0 for record in steps[1:])
    return float(steps[-1]["time"] - steps[0]["time"] - evaluating)


def surviving(records: Sequence[Record]) -> list[Record]:
    """Without the steps that a restored trainer took again: the last record of each step stands."""
    kept: dict[int, Record] = {}
    for record in records:
        step = record["step"]
        kept = {earlier: other for earlier, other in kept.items() if earlier < step} if step in kept else kept
        kept[step] = record
    return list(kept.values())


def training(records: Sequence[Record]) -> list[Record]:
    """The records of training steps; what is written before the first step has step 0."""
    return [record for record in records if record["step"] >= 1]


def values(records: Sequence[Record], name: str) -> list[float]:
    """A statistic over the records that have it."""
    return [float(record[name]) for record in records if record.get(name) is not None]


def _shares(record: Record, ending: str) -> list[float]:
    return [
        float(value) / 100.0
        for name, value in record.items()
        if name.startswith(EVAL) and name.endswith(ending) and value is not None
    ]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
