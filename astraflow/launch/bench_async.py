"""What asynchrony buys: the same run with staleness bound η = 2 and with η = 0 (synchronous), over several seeds.

wait    a log-normal wait, one per group after its generation, stands in for tools and environments
plain   no wait; η = 2 against synchronous training with one and with two training threads
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from astraflow.dataflow.config import WaitConfig
from astraflow.errors import ConfigError
from astraflow.launch.config import RunConfig
from astraflow.launch.summary import Summary

WAIT = WaitConfig(mean_s=0.5, sigma=1.0)

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t at 97.5% for 1, 2, … degrees of freedom; beyond, the normal's 1.96."""


@dataclass(frozen=True)
class Arm:
    """One condition of the comparison."""

    name: str
    staleness: int
    threads: int
    wait: WaitConfig | None


ARMS = (
    Arm("wait/async", 2, 1, WAIT),
    Arm("wait/sync", 0, 1, WAIT),
    Arm("plain/async", 2, 1, None),
    Arm("plain/sync", 0, 1, None),
    Arm("plain/sync_2_threads", 0, 2, None),
)
RATIOS = {
    "wait": ("wait/async", "wait/sync"),
    "plain_vs_sync_1_thread": ("plain/async", "plain/sync"),
    "plain_vs_sync_2_threads": ("plain/async", "plain/sync_2_threads"),
}


class Estimate(msgspec.Struct, frozen=True):
    """A mean over seeds and its 95% interval (Student's t); no interval from one seed."""

    mean: float
    interval: tuple[float, float] | None
    values: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        if not values:
            return cls(math.nan, None, [])
        mean = statistics.fmean(values)
        if len(values) < 2:
            return cls(mean, None, list(values))
        t = _T975[len(values) - 2] if len(values) - 2 < len(_T975) else 1.96
        half = t * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, (mean - half, mean + half), list(values))

    def overlaps(self, other: Estimate) -> bool | None:
        """Whether the intervals meet; None where one is missing."""
        if self.interval is None or other.interval is None:
            return None
        return self.interval[0] <= other.interval[1] and other.interval[0] <= self.interval[1]


class ArmResult(msgspec.Struct, frozen=True, kw_only=True):
    staleness: int
    threads: int
    """torch threads of the train worker."""
    wait_mean_s: float
    wait_sigma: float
    steps_per_min: Estimate
    stale_share: float
    """Groups dropped as stale, of all that finished."""
    accuracy: Estimate
    """Final sampled accuracy, a fraction."""
    runs: list[Summary]


class AsyncBench(msgspec.Struct, frozen=True, kw_only=True):
    """What the bench writes."""

    seeds: list[int]
    steps: int
    max_concurrent: int
    """Groups that run at once, the same in every arm."""
    groups_per_step: int
    arms: dict[str, ArmResult]
    ratios: dict[str, float]
    """Steps per minute, asynchronous over synchronous."""
    accuracy_intervals_overlap: dict[str, bool | None]


def bench(
    config: RunConfig,
    seeds: Sequence[int],
    run: Callable[[RunConfig], Summary],
    say: Callable[[str], None],
    arms: Sequence[Arm] = ARMS,
) -> AsyncBench:
    """Run every arm with every seed, one after the other. `run` is launch.run.run with a view."""
    if len(config.model_ids) != 1:
        raise ConfigError(f"the bench trains one model, the configuration has {', '.join(config.model_ids)}")
    if not config.dataflow.eval_datasets:
        raise ConfigError("the bench compares final accuracy: dataflow.eval_datasets is empty")
    groups = config.groups_per_batch(config.model_ids[0])
    results: dict[str, ArmResult] = {}
    runs: dict[str, list[Summary]] = {arm.name: [] for arm in arms}
    for seed in seeds:  # seeds outside, so that a machine that slows down over time slows every arm
        for arm in arms:
            say(f"{arm.name}, seed {seed}")
            runs[arm.name].append(run(arm_config(config, arm, seed)))
    for arm in arms:
        results[arm.name] = _result(arm, runs[arm.name], groups)
        say(_line(arm.name, results[arm.name]))
    pairs = {name: pair for name, pair in RATIOS.items() if set(pair) <= set(results)}
    return AsyncBench(
        seeds=list(seeds),
        steps=next(iter(config.trainers.values())).total_train_steps,
        max_concurrent=config.rollout.max_concurrent_rollouts * config.raas.instances,
        groups_per_step=groups,
        arms=results,
        ratios={name: results[a].steps_per_min.mean / results[b].steps_per_min.mean for name, (a, b) in pairs.items()},
        accuracy_intervals_overlap={
            name: results[a].accuracy.overlaps(results[b].accuracy) for name, (a, b) in pairs.items()
        },
    )


def arm_config(config: RunConfig, arm: Arm, seed: int) -> RunConfig:
    """The configuration with an arm's bound, threads and wait; evaluated once, at the end."""
    root = Path(config.experiment.fileroot) / "bench" / f"{arm.name.replace('/', '-')}-seed{seed}"
    buffer = config.dataflow.buffer.model_copy(update={"max_staleness": arm.staleness, "rollout_wait": arm.wait})
    trainers = {
        model_id: trainer.model_copy(
            update={
                "threads": arm.threads,
                "evaluator": trainer.evaluator.model_copy(update={"eval_at_start": False, "freq_steps": None}),
            }
        )
        for model_id, trainer in config.trainers.items()
    }
    return dataclasses.replace(
        config,
        experiment=config.experiment.model_copy(update={"seed": seed, "fileroot": str(root)}),
        dataflow=config.dataflow.model_copy(update={"buffer": buffer}),
        trainers=trainers,
    )


def _result(arm: Arm, runs: list[Summary], groups: int) -> ArmResult:
    finished = sum(run.rl_steps * groups + sum(run.dropped.values()) for run in runs)
    stale = sum(run.dropped.get("stale", 0) for run in runs)
    accuracies = [run.accuracy_after.get("sampled") for run in runs]
    return ArmResult(
        staleness=arm.staleness,
        threads=arm.threads,
        wait_mean_s=arm.wait.mean_s if arm.wait else 0.0,
        wait_sigma=arm.wait.sigma if arm.wait else 0.0,
        steps_per_min=Estimate.of([run.steps_per_min for run in runs]),
        stale_share=stale / finished if finished else 0.0,
        accuracy=Estimate.of([share for share in accuracies if share is not None]),
        runs=runs,
    )


def _line(name: str, result: ArmResult) -> str:
    span = result.accuracy.interval
    interval = f" [{span[0]:.1%}, {span[1]:.1%}]" if span else ""
    return (
        f"{name:22} {result.steps_per_min.mean:7.1f} steps/min  stale {result.stale_share:5.1%}  "
        f"accuracy {result.accuracy.mean:.1%}{interval}"
    )
