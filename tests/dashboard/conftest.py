"""A small recorded run whose every text is hostile, and a browser that tells what a page did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.core.observability.run_directory import RunDirectory

HOSTILE = '</script><img src="http://example.com/x" onerror="alert(1)"><!--$$x$$\\(y\\)'
STEPS = 12


def config(**changes: Any) -> str:
    experiment = {"experiment_name": "sums", "trial_name": HOSTILE, "seed": 1, **changes}
    return json.dumps({"experiment": experiment, "dataflow": {"buffer": {"max_staleness": 2}}})  # JSON is YAML


def metrics(step: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "step": step,
        "time": 100.0 + step,
        "rollout/reward_mean": 0.2 + step / 20,
        "rollout/tokens_per_s": 1000.0 + step,
        "rollout/length_mean": 8.0,
        "train/tokens_per_s": 2000.0,
        "staleness/avg": 0.5,
        "staleness/max": 2.0,
        "batch/sampled_tokens": 90.0,
        "batch/rows": 10.0,
        "stop/stop": 9.0,
        "stop/length": 1.0,
        "dropped/zero_advantage": 3.0 * step,
        "dropped/stale": 0.0,
        f"dropped/{HOSTILE}": float(step),
        "ppo/entropy": 0.5,
        "ppo/grad_norm": 1.0,
        "ratio/mean": 1.0,
        "ratio/max": 1.5,
        "ratio/current_version_max_dev": None if step == 3 else 1e-5,
    }
    if step % 4 == 0:
        scores = {"avg@k": 50.0 + step, "avg@k_low": 45.0 + step, "avg@k_high": 55.0 + step, "greedy": 60.0}
        record |= {f"eval/{HOSTILE}/{name}": value for name, value in scores.items()}
    return record


def kept(step: int, outcome: str, sample_id: int) -> dict[str, Any]:
    return {
        "step": step,
        "outcome": outcome,
        "task_id": HOSTILE,
        "group_id": 1,
        "sample_id": sample_id,
        "model_id": "model0",
        "reward": 1.0,
        "group_reward_mean": 0.5,
        "stop": "stop",
        "ids": [1, 2, 3, 4],
        "mask": [0, 1, 1, 1],
        "versions": [-1, step - 2, step - 1, step - 1],
        "logprobs": [0.0, -0.5, -0.25, -0.125],
        "pieces": ["1+1\n", HOSTILE, "=", "2"],
    }


def spans(steps: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for step in range(steps):
        start = 1000.0 + step
        found += [
            {"name": "train", "process": "train_worker-model0", "start": start, "seconds": 0.4, "version": step},
            {"name": "wait_batch", "process": "train_worker-model0", "start": start + 0.4, "seconds": 0.6},
            {"name": "collect", "process": "dataflow", "start": start, "seconds": 1.0, "model_id": HOSTILE},
            {"name": "generate", "process": "raas-0", "start": start, "seconds": 0.7, "version": step},
            {"name": "pull", "process": "raas-0", "start": start + 0.1, "seconds": 0.2, "version": step},
        ]
    return found


def write_lines(path: Path, values: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), "utf-8")


SUMMARY = {
    "accuracy_before": {"sampled": 0.5, "greedy": None},
    "accuracy_after": {"sampled": 0.9, "greedy": 0.95},
    "accuracy_after_interval": [0.85, 0.93],
    "rl_steps": STEPS,
    "wall_s": 75.2,
    "max_trained_staleness": 2,
    "staleness_bound": 2,
    "weight_updates": STEPS,
    "trajectories_with_two_versions": 7,
    "rollout_tokens_per_s": 12345.6,
    "train_tokens_per_s": 2000.0,
    "steps_per_min": 60.0,
    "dropped": {"zero_advantage": 36, "stale": 0},
}


def write_run(root: Path, finished: bool = True, **changes: Any) -> Path:
    """A run directory of STEPS steps."""
    run = RunDirectory(root)
    run.config.write_text(config(**changes), "utf-8")
    write_lines(run.metrics, [metrics(step) for step in range(STEPS + 1)])
    write_lines(run.spans, spans(STEPS))
    for step in range(1, STEPS + 1):
        write_lines(
            run.kept_trajectories(step),
            [kept(step, "trained", 10), kept(step, "trained", 10), kept(step, HOSTILE, 11)],
        )
        logprobs = [[0.0, -0.5, -0.5, -0.125], [0.0, -1.0, -0.25, -0.125]]
        write_lines(run.trainer_logprobs(step, "model0"), [{"sample_id": 10, "logprobs": p} for p in logprobs])
    run.log("raas-0").write_text(f"started\n{HOSTILE}\n", "utf-8")
    if finished:
        run.summary.write_text(json.dumps(SUMMARY), "utf-8")
    return root


@pytest.fixture
def make_run() -> Callable[..., Path]:
    return write_run
