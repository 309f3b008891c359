"""What a training step says about itself. A mean's numerator and denominator come from one mask (LAW 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from astraflow.core.data import Batch
from astraflow.core.observability.stats_tracker import StatsTracker
from astraflow.core.protocol.messages import EvalResults
from astraflow.train_worker.algorithms.mismatch import token_ratio
from astraflow.train_worker.algorithms.spans import span_of_token
from astraflow.train_worker.engine.base import StepResult
from astraflow.train_worker.trainer.policy_batch import Minibatch, PolicyBatch
from astraflow.train_worker.trainer.policy_objective import PolicyObjective


def batch_stats(
    batch: Batch, policy: PolicyBatch, initial_logprobs_T: Tensor, version: int, step_of: Mapping[int, int]
) -> dict[str, float]:
    """Statistics of a batch under the policy of `version`, before its first optimiser step.

    ratio/*: π / π_behaviour of sampled tokens. ratio/current_version_max_dev: the largest |ratio − 1| in trajectories
    that were sampled wholly under `version` (LAW 15), absent where the batch has none. staleness/*: the last step less
    the one that made each sampled token's version. reward/*: raw, over rows.
    """
    rows, row_of_token = policy.rows, span_of_token(policy.rows.cu_seqlens)
    versions, mask = rows.streams["versions"], rows.mask
    ratio = token_ratio(initial_logprobs_T, rows.streams["behaviour_logprobs"], mask)
    tracker = StatsTracker()
    tracker.denominator(sampled=mask)
    tracker.stat("sampled", "mean", "max", ratio=ratio)
    tracker.stat("sampled", "mean", "max", staleness=step_of[version] - _steps(versions, step_of))
    tracker.stat("sampled", "mean", advantage_abs=rows.streams["advantages"].abs())
    stats = tracker.export()
    stats["staleness/avg"] = stats.pop("staleness/mean")

    high = torch.zeros(len(rows.lengths), dtype=torch.int64).scatter_reduce(
        0, row_of_token[mask], versions[mask], "amax", include_self=False
    )
    low = torch.zeros_like(high).scatter_reduce(0, row_of_token[mask], versions[mask], "amin", include_self=False)
    current = mask & (low == version)[row_of_token]
    if current.any():
        stats["ratio/current_version_max_dev"] = float((ratio[current] - 1).abs().max())
    rewards = batch.rewards.astype(np.float64)
    return stats | {
        "batch/rows": float(len(rows.lengths)),
        "batch/groups": float(len(np.unique(batch.group_id))),
        "batch/tokens": float(len(mask)),
        "batch/sampled_tokens": stats.pop("sampled"),
        "batch/trajectories_with_two_versions": float((low != high).sum()),
        "batch/current_version_trajectories": float((low == version).sum()),
        "batch/truncated": float(batch.truncated.mean()),
        "reward/mean": float(rewards.mean()),
        "reward/shaped_mean": float(policy.shaped_rewards.mean()),
    }


def update_stats(
    objective: PolicyObjective, minibatches: Sequence[Minibatch], results: Sequence[StepResult]
) -> dict[str, float]:
    """Statistics of a batch's optimiser steps, each seen from the policy before it; of those that were skipped, only
    their number.
    """
    tracker = StatsTracker()
    taken = [(part, result) for part, result in zip(minibatches, results, strict=True) if not result.skipped]
    for part, result in taken:
        policy = objective.policy(part.rows, result.outputs.logprobs)
        tracker.denominator(sampled=part.rows.mask)
        tracker.stat("sampled", entropy=result.outputs.entropy)
        tracker.stat("sampled", clip_fraction=policy.clipped, dual_clip_fraction=policy.dual_clipped)
        tracker.scalar(loss=result.loss, lr=result.learning_rate)
        tracker.scalar("mean", "max", grad_norm=result.grad_norm)
    stats = {f"ppo/{name}": value for name, value in tracker.export().items() if name != "sampled"}
    if taken:
        stats["ppo/grad_norm"] = stats.pop("ppo/grad_norm/mean")
    stats["ppo/skipped_steps"] = float(len(results) - len(taken))
    if objective.bounds is not None:
        bounds = objective.bounds
        stats |= {"m2po/eps_low": bounds.eps_low, "m2po/eps_high": bounds.eps_high, "m2po/moment": bounds.moment}
    return stats


def eval_stats(results: EvalResults | None) -> dict[str, float]:
    """An evaluation round as flat numbers under eval/<dataset>/, shares in percent as they come."""
    if results is None:
        return {}
    stats = {"eval/overall_avg@k": results.overall_avg_at_k, "eval/overall_pass@k": results.overall_pass_at_k}
    stats["eval/version"] = float(results.version)
    for name, found in results.datasets.items():
        numbers: Mapping[str, float | None] = {
            "avg@k": found.avg_at_k,
            "avg@k_low": found.avg_at_k_interval[0],
            "avg@k_high": found.avg_at_k_interval[1],
            "pass@k": found.pass_at_k,
            "pass@k_low": found.pass_at_k_interval[0],
            "pass@k_high": found.pass_at_k_interval[1],
            "greedy": found.greedy,
            "mean_reward": found.mean_reward,
            "correct": found.correct,
            "total": found.total,
            "sample_count": found.sample_count,
            "k": found.k,
            "invalid": found.invalid,
        }
        stats |= {f"eval/{name}/{key}": float(value) for key, value in numbers.items() if value is not None}
    return stats


def _steps(versions: Tensor, step_of: Mapping[int, int]) -> Tensor:
    """The step that made each version; numbers jump after a recovery, steps do not."""
    distinct, place = np.unique(versions.numpy(), return_inverse=True)
    return torch.tensor([step_of.get(version, version) for version in distinct.tolist()])[torch.from_numpy(place)]
