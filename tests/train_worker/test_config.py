"""Combinations of keys that have no meaning are refused where they are read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from astraflow.core.config import ExperimentConfig
from astraflow.train_worker.config import ActorConfig, TrainerConfig, TrainWorkerSettings


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"loss": "m2po"}, "m2_threshold belongs to loss: m2po"),
        ({"m2_threshold": 0.04}, "m2_threshold belongs to loss: m2po"),
        ({"loss": "m2po", "m2_threshold": 0.04, "eps_clip": 0.1}, "chooses its own clip bounds"),
        ({"loss": "m2po", "m2_threshold": 0.04, "eps_clip_higher": 0.28}, "chooses its own clip bounds"),
        ({"loss": "ppo", "behav_imp_weight_cap": 2.0}, "loss: decoupled only"),
        ({"loss_agg": "constant"}, "loss_constant belongs"),
        ({"loss_constant": 10.0}, "loss_constant belongs"),
    ],
)
def test_actor(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ActorConfig(**keys)


@pytest.mark.parametrize(
    ("samples", "minibatches", "message"),
    [(30, 1, "30 samples do not make whole groups of 8"), (32, 5, "4 groups cannot make 5 minibatches")],
)
def test_groups_stay_whole(samples: int, minibatches: int, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainWorkerSettings(
            experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot="r"),
            model_id="model0",
            model_path="m",
            n_samples=8,
            max_new_tokens=3,
            trainer=TrainerConfig(
                total_train_steps=1, train_batch_size=samples, actor=ActorConfig(ppo_n_minibatches=minibatches)
            ),
            dataflow_url="http://dataflow",
            run_dir="r",
        )
