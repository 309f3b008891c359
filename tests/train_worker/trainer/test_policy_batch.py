"""A batch as the loss sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from astraflow.train_worker.config import ActorConfig, NormConfig, OverlongConfig
from astraflow.train_worker.packed_rows import PackedRows
from astraflow.train_worker.trainer.policy_batch import PolicyBatch, _shaped
from astraflow.train_worker.trainer.policy_stats import batch_stats


@pytest.fixture(name="batch")
def _batch(scripted: SimpleNamespace) -> Any:
    make = scripted.trajectory
    return scripted.batch_of(
        [
            make(1, 0, [5, 6], [7], 1.0, versions=[3]),
            make(1, 1, [5, 6], [7, 8, 9], 0.0, versions=[2, 2, 3]),
            make(2, 0, [4], [7, 8], 0.5, versions=[2, 2]),
            make(2, 1, [4], [9, 9], 0.5, versions=[3, 3]),
        ]
    )


def test_advantages_by_group(batch: Any) -> None:
    policy = PolicyBatch.of(batch, ActorConfig(), 10)
    expected = [0, 0, 0.7071, 0, 0, -0.7071, -0.7071, -0.7071, 0, 0, 0, 0, 0, 0]
    assert policy.rows.streams["advantages"].tolist() == pytest.approx(expected, abs=1e-4)


def test_rewards_are_shaped_before_the_statistics(batch: Any) -> None:
    actor = ActorConfig(
        reward_norm=None,
        reward_bias=-0.5,
        reward_scaling=2.0,
        overlong=OverlongConfig(buffer_len=2, penalty_factor=1.0),
    )
    policy = PolicyBatch.of(batch, actor, 3)
    assert policy.shaped_rewards.tolist() == [1.0, -2.0, -0.5, -0.5]


def test_the_over_long_penalty_is_for_one_generation_not_for_many() -> None:
    rows = PackedRows(
        lengths=torch.tensor([9]),
        input_ids=torch.arange(9),
        mask=torch.tensor([0, 1, 1, 1, 0, 1, 1, 1, 1], dtype=torch.bool),
    )
    actor = ActorConfig(overlong=OverlongConfig(buffer_len=2, penalty_factor=1.0))
    assert _shaped(torch.zeros(1), rows, actor, max_new_tokens=6).tolist() == [0.0]
    assert _shaped(torch.zeros(1), rows, actor, max_new_tokens=5).tolist() == [-0.5]


def test_advantages_are_normalised_over_the_whole_batch(batch: Any) -> None:
    actor = ActorConfig(adv_norm=NormConfig(mean_level="batch", std_level="batch"))
    policy = PolicyBatch.of(batch, actor, 10)
    sampled = policy.rows.streams["advantages"][policy.rows.mask]
    assert sampled.mean().item() == pytest.approx(0, abs=1e-6)
    assert sampled.std().item() == pytest.approx(1, abs=1e-4)


def test_minibatches_cover_the_rows_with_weights_of_their_own(batch: Any) -> None:
    actor = ActorConfig(ppo_n_minibatches=2)
    parts = PolicyBatch.of(batch, actor, 10).minibatches(actor)
    assert [part.items for part in parts] == [[0, 1], [2, 3]]
    assert [part.weights.sum().item() for part in parts] == pytest.approx([1, 1])


def test_statistics(batch: Any) -> None:
    policy = PolicyBatch.of(batch, ActorConfig(), 10)
    logprobs = torch.where(policy.rows.mask, -1.0, 0.0)
    logprobs[-1] += 0.01
    stats = batch_stats(batch, policy, logprobs, version=3, step_of={2: 1, 3: 2})
    assert stats["staleness/max"] == 1
    assert stats["staleness/avg"] == pytest.approx(4 / 8)
    assert stats["batch/trajectories_with_two_versions"] == 1
    assert stats["batch/current_version_trajectories"] == 2
    assert stats["ratio/current_version_max_dev"] == pytest.approx(0.01005, abs=1e-5)
    assert stats["reward/mean"] == 0.5


def test_staleness_is_counted_in_steps_when_numbers_jump(batch: Any) -> None:
    policy = PolicyBatch.of(batch, ActorConfig(), 10)
    logprobs = torch.zeros(len(policy.rows.mask))
    stats = batch_stats(batch, policy, logprobs, version=3, step_of={2: 7, 3: 7})
    assert stats["staleness/max"] == 0
