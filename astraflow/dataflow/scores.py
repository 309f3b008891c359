"""Scores of an evaluation: avg@k, pass@k, greedy, and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from astraflow.core.data import Value
from astraflow.core.protocol.messages import EvalDatasetResult

RESAMPLES = 2000
"""Of the cluster bootstrap."""


@dataclass
class PromptScores:
    """What the samples of one row scored."""

    rewards: list[Value] = field(default_factory=list)
    """Of the samples that have one."""
    invalid: int = 0
    greedy: bool | None = None
    """Is the greedy sample right? None where there is none."""

    @property
    def correct(self) -> int:
        return sum(reward.correct for reward in self.rewards)

    @property
    def samples(self) -> int:
        return len(self.rewards) + self.invalid


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that one of min(k, n) samples drawn from n, c of them right, is right (Chen et al. 2021, eq. 1)."""
    k = min(k, n)
    return 0.0 if k < 1 else 1.0 - math.comb(n - c, k) / math.comb(n, k)


def cluster_bootstrap(means: np.ndarray, seed: int, resamples: int = RESAMPLES) -> tuple[float, float]:
    """95% interval of the mean of per-prompt means [P], prompts drawn with replacement."""
    drawn = np.random.default_rng(seed).integers(0, len(means), (resamples, len(means)))
    low, high = np.percentile(means[drawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def score_dataset(prompts: Sequence[PromptScores], k: int, seed: int) -> EvalDatasetResult:
    """Reduce a round's samples of one dataset to avg@k over all of them and pass@k; shares are percent.

    Samples without a reward count as wrong. Intervals resample prompts, because a prompt's samples are alike.
    """
    passes = np.array([pass_at_k(p.samples, p.correct, k) for p in prompts])
    means = np.array([p.correct / p.samples if p.samples else 0.0 for p in prompts])
    rewards = [reward.value for p in prompts for reward in p.rewards]
    greedy = [p.greedy for p in prompts if p.greedy is not None]
    return EvalDatasetResult(
        avg_at_k=100 * float(means.mean()),
        pass_at_k=100 * float(passes.mean()),
        mean_reward=float(np.mean(rewards)) if rewards else 0.0,
        correct=sum(p.correct for p in prompts),
        total=len(prompts),
        sample_count=sum(p.samples for p in prompts),
        k=k,
        avg_at_k_interval=_percent(cluster_bootstrap(means, seed)),
        pass_at_k_interval=_percent(cluster_bootstrap(passes, seed)),
        greedy=100 * sum(greedy) / len(greedy) if greedy else None,
        invalid=sum(p.invalid for p in prompts),
    )


def _percent(interval: tuple[float, float]) -> tuple[float, float]:
    return 100 * interval[0], 100 * interval[1]
