"""What each chart shows, from the metrics of one run or of several. Names are those of docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from astraflow.dashboard.recording import Recording

MOST_POINTS = 1500
"""Points of one curve; a longer one is averaged over equal pieces."""

MOST_BINS = 100
"""Bars of the chart of dropped groups."""

SMOOTHING = 0.8
"""Weight of the past in the smoothed curve of a noisy statistic."""

DROPPED = "dropped/"
Record = Mapping[str, Any]


class Look(StrEnum):
    """How a curve is drawn."""

    LINE = "line"
    FAINT = "faint"
    """Raw values under a smoothed line."""
    MARKED = "marked"
    """A line with a point at each value: few values."""
    LIMIT = "limit"
    """A level that is not exceeded."""


@dataclass(frozen=True)
class Curve:
    """One statistic of one run over its steps."""

    label: str
    x: list[float]
    y: list[float]
    look: Look = Look.LINE
    run: int = 0
    """Which of the compared runs."""
    role: int = 0
    """Which of the chart's statistics."""
    low: list[float] | None = None
    """Lower end of each value's interval."""
    high: list[float] | None = None


@dataclass(frozen=True)
class Chart:
    """Curves with common axes."""

    key: str
    title: str
    unit: str
    """Label of the y axis."""
    curves: tuple[Curve, ...]
    percent: bool = False
    log: bool = False


@dataclass(frozen=True)
class Stack:
    """Parts of a whole over steps."""

    key: str
    title: str
    unit: str
    centres: list[float]
    width: float
    parts: Mapping[str, list[float]]
    """Label → a value for each bar."""


@dataclass(frozen=True)
class Statistic:
    """One metric in a chart."""

    metric: str
    label: str
    smooth: bool = False
    look: Look = Look.LINE


def reward(runs: Sequence[Recording]) -> list[Chart]:
    noisy = Statistic("rollout/reward_mean", "all finished samples", smooth=True)
    return [_chart("reward", "Reward of finished rollouts", "mean reward", runs, [noisy])]


def accuracy(runs: Sequence[Recording]) -> list[Chart]:
    """Sampled accuracy with its 95% interval and greedy accuracy, for each evaluation dataset."""
    curves: list[Curve] = []
    for number, run in enumerate(runs):
        for role, dataset in enumerate(_datasets(run.records)):
            curves += _accuracy(run, number, 2 * role, dataset)
    return [Chart("accuracy", "Held-out accuracy, with 95% intervals", "accuracy", tuple(curves), percent=True)]


def staleness(runs: Sequence[Recording]) -> list[Chart]:
    statistics = [Statistic("staleness/avg", "mean"), Statistic("staleness/max", "oldest token")]
    chart = _chart("staleness", "Staleness of trained tokens", "training steps", runs, statistics)
    bounds = [
        Curve("bound η", [steps[0], steps[-1]], [float(bound)] * 2, Look.LIMIT, number, 2)
        for number, run in enumerate(runs)
        if (bound := run.staleness_bound) is not None and (steps := [float(r["step"]) for r in run.steps])
    ]
    return [Chart(chart.key, chart.title, chart.unit, (*chart.curves, *bounds))]


def throughput(runs: Sequence[Recording]) -> list[Chart]:
    rollout = Statistic("rollout/tokens_per_s", "sampled by RaaS")
    train = Statistic("train/tokens_per_s", "trained, while training")
    return [
        _chart("rollout-tokens", "Rollout throughput", "tokens / s", runs, [rollout]),
        _chart("train-tokens", "Training throughput", "tokens / s", runs, [train]),
    ]


def lengths(runs: Sequence[Recording]) -> list[Chart]:
    sampled = Statistic("rollout/length_mean", "all finished samples")
    trained = _derived(runs, "in batches", 1, _trained_length)
    cut = _derived(runs, "ended by length", 0, _cut_share)
    means = _chart("lengths", "Sampled tokens of a trajectory", "tokens", runs, [sampled])
    return [
        Chart(means.key, means.title, means.unit, (*means.curves, *trained)),
        Chart("truncated", "Generations cut by their length limit", "share", tuple(cut), percent=True),
    ]


def health(runs: Sequence[Recording]) -> list[Chart]:
    """What tells whether learning is sound."""
    deviation = Statistic("ratio/current_version_max_dev", "largest |ratio − 1| at the current version")
    off_policy = [Statistic("ratio/mean", "mean ratio"), Statistic("ratio/max", "largest ratio")]
    return [
        _chart("entropy", "Entropy of sampled tokens", "nats", runs, [Statistic("ppo/entropy", "mean")]),
        _chart("grad-norm", "Gradient norm", "norm", runs, [Statistic("ppo/grad_norm", "mean of a step")]),
        _chart("ratio", "Importance ratio, trainer over engine", "ratio", runs, off_policy),
        _chart("mismatch", "Engine and trainer on the same weights", "|ratio − 1|", runs, [deviation], log=True),
    ]


def drops(run: Recording) -> Stack:
    """Groups that did not train, by reason, per piece of the run; reasons that never occurred are left out."""
    steps = run.steps
    size = max(1, -(-len(steps) // MOST_BINS))
    pieces = [steps[start : start + size] for start in range(0, len(steps), size)]
    reasons = sorted({name for record in steps for name in record if name.startswith(DROPPED)})
    parts: dict[str, list[float]] = {}
    for name in reasons:
        totals = [0.0, *(float(piece[-1].get(name) or 0.0) for piece in pieces)]
        added = [max(0.0, after - before) / size for before, after in pairwise(totals)]
        if any(added):
            parts[name.removeprefix(DROPPED).replace("_", " ")] = added
    centres = [(piece[0]["step"] + piece[-1]["step"]) / 2 for piece in pieces]
    return Stack("drops", "Groups that did not train", "groups / step", centres, 0.9 * size, parts)


def smoothed(values: Sequence[float], weight: float = SMOOTHING) -> list[float]:
    """Exponential mean, corrected for its start."""
    out: list[float] = []
    total = norm = 0.0
    for value in values:
        total = weight * total + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        out.append(total / norm)
    return out


def thinned(x: Sequence[float], y: Sequence[float], most: int = MOST_POINTS) -> tuple[list[float], list[float]]:
    """Average equal pieces where there are more than `most` points."""
    size = -(-len(x) // most) if x else 1
    if size == 1:
        return list(x), list(y)
    pieces = range(0, len(x), size)

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return [mean(x[i : i + size]) for i in pieces], [mean(y[i : i + size]) for i in pieces]


def _chart(
    key: str, title: str, unit: str, runs: Sequence[Recording], statistics: Sequence[Statistic], log: bool = False
) -> Chart:
    curves: list[Curve] = []
    for number, run in enumerate(runs):
        for role, statistic in enumerate(statistics):
            x, y = _values(run.steps, statistic.metric, positive=log)
            if not x:
                continue
            x, y = thinned(x, y)
            if statistic.smooth:
                curves.append(Curve(statistic.label, x, y, Look.FAINT, number, role))
                curves.append(Curve(f"{statistic.label}, smoothed", x, smoothed(y), Look.LINE, number, role))
            else:
                curves.append(Curve(statistic.label, x, y, statistic.look, number, role))
    return Chart(key, title, unit, tuple(curves), log=log)


def _values(records: Sequence[Record], name: str, positive: bool = False) -> tuple[list[float], list[float]]:
    """Steps and values of a metric, where it was recorded and finite."""
    found = [(float(r["step"]), float(r[name])) for r in records if isinstance(r.get(name), int | float)]
    found = [(x, y) for x, y in found if not positive or y > 0]
    return [x for x, _ in found], [y for _, y in found]


def _derived(runs: Sequence[Recording], label: str, role: int, value: Callable[[Record], float | None]) -> list[Curve]:
    curves = []
    for number, run in enumerate(runs):
        found = [(float(r["step"]), y) for r in run.steps if (y := value(r)) is not None]
        if found:
            xs, ys = thinned([x for x, _ in found], [y for _, y in found])
            curves.append(Curve(label, xs, ys, Look.LINE, number, role))
    return curves


def _trained_length(record: Record) -> float | None:
    tokens, rows = record.get("batch/sampled_tokens"), record.get("batch/rows")
    return float(tokens) / float(rows) if tokens is not None and rows else None


def _cut_share(record: Record) -> float | None:
    stops = {name: float(value) for name, value in record.items() if name.startswith("stop/") and value is not None}
    total = sum(stops.values())
    return stops.get("stop/length", 0.0) / total if total else None


def _datasets(records: Sequence[Record]) -> list[str]:
    names = [name for record in records for name in record if name.startswith("eval/") and name.endswith("/avg@k")]
    return list(dict.fromkeys(name.removeprefix("eval/").removesuffix("/avg@k") for name in names))


def _accuracy(run: Recording, number: int, role: int, dataset: str) -> list[Curve]:
    """The protocol has percent; charts have shares."""

    def share(record: Record, name: str) -> float | None:
        value = record.get(f"eval/{dataset}/{name}")
        return None if value is None else float(value) / 100.0

    rounds = [record for record in run.records if share(record, "avg@k") is not None]
    x = [float(record["step"]) for record in rounds]
    sampled = [share(record, "avg@k") or 0.0 for record in rounds]
    low = [share(record, "avg@k_low") for record in rounds]
    high = [share(record, "avg@k_high") for record in rounds]
    whole = all(value is not None for value in (*low, *high))
    band = ([v or 0.0 for v in low], [v or 0.0 for v in high]) if whole else (None, None)
    curves = [Curve(f"{dataset}, sampled", x, sampled, Look.MARKED, number, role, *band)]
    greedy = [(float(r["step"]), value) for r in rounds if (value := share(r, "greedy")) is not None]
    if greedy:
        curves.append(
            Curve(f"{dataset}, greedy", [x for x, _ in greedy], [y for _, y in greedy], Look.MARKED, number, role + 1)
        )
    return curves
