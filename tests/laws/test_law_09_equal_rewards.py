"""LAW 9. Equal rewards give exactly zero advantage, tested on rewards and not on a tiny std; all-masked gives loss
0, finite.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from astraflow.core.data import Batch, Group
from astraflow.core.data.trajectory import GroupResult
from astraflow.core.workflow.api.group import GroupTask
from astraflow.core.workflow.api.padded import episodes_of
from astraflow.dataflow.curation import Occurrence, groups_of
from astraflow.train_worker.algorithms.aggregation import aggregate, token_weights
from astraflow.train_worker.algorithms.losses import decoupled_ppo_loss, gspo_loss, ppo_loss, sapo_loss
from astraflow.train_worker.algorithms.normalisation import normalise
from astraflow.train_worker.config import ActorConfig, NormConfig
from astraflow.train_worker.trainer.policy_batch import PolicyBatch


@pytest.mark.parametrize("reward", [0.1, 1 / 3, -1e-30, 123456.789])
def test_equal_rewards(reward: float) -> None:
    assert normalise(torch.full((5,), reward), torch.ones(5), NormConfig()).tolist() == [0.0] * 5


def test_rewards_that_differ_by_little_are_not_equal() -> None:
    out = normalise(torch.tensor([1.0, 1.0 + 1e-3]), torch.ones(2), NormConfig(eps=1e-9))
    assert out.tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-3)


@pytest.mark.parametrize("loss", ["ppo", "decoupled", "gspo", "sapo"])
def test_all_masked(loss: str) -> None:
    logprobs = torch.randn(4, requires_grad=True)
    old, advantages, mask, rows = torch.full((4,), -torch.inf), torch.ones(4), torch.zeros(4), torch.tensor([0, 4])
    result = {
        "ppo": lambda: ppo_loss(logprobs, old, advantages, mask),
        "decoupled": lambda: decoupled_ppo_loss(logprobs, old, old, advantages, mask),
        "gspo": lambda: gspo_loss(logprobs, old, advantages, mask, rows),
        "sapo": lambda: sapo_loss(logprobs, old, advantages, mask),
    }[loss]()
    total = aggregate(result.loss, token_weights(mask, rows))
    total.backward()
    assert total.item() == 0.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0] * 4


CHAINS = [[8.1, 9.0, 10.0], [0.81, 0.9, 1.0], [0.9, 1.0], [0.729, 0.81, 0.9, 1.0]]


def chains_of(chains: list[list[float]]) -> Group:
    """One group, a sample a chain of separately rewarded turns, as a workflow's padded arrays give it."""
    rewards = [reward for chain in chains for reward in chain]
    rows = np.ones((len(rewards), 1), np.int32)
    arrays = {
        "input_ids": rows * [1, 2, 3, 4],
        "loss_mask": rows * [0, 0, 1, 1],
        "logprobs": rows * np.array([0, 0, -0.5, -0.5], np.float32),
        "versions": rows * [-1, -1, 0, 0],
        "attention_mask": (rows * [1, 1, 1, 1]).astype(bool),
        "rewards": np.array(rewards, np.float32),
        "begin_of_trajectory": np.array([place == 0 for chain in chains for place in range(len(chain))]),
    }
    episodes = episodes_of(arrays, GroupTask(task_id="t", group_id=1, data={}, n_samples=len(chains)))
    (group,) = groups_of(Occurrence(1, 0, "t"), GroupResult(group_id=1, episodes=episodes), ["default"])
    return group


def advantages(chains: list[list[float]], actor: ActorConfig | None = None) -> list[float]:
    """Of each sampled token, as the trainer makes them of a served batch."""
    policy = PolicyBatch.of(Batch.of([chains_of(chains)]).check(), actor or ActorConfig(), 64)
    found: list[float] = policy.rows.streams["advantages"][policy.rows.mask].tolist()
    return found


@pytest.mark.parametrize("chain", CHAINS, ids=str)
@pytest.mark.parametrize("samples", [2, 3, 6, 7, 8, 16])
def test_equal_episodes_of_several_rows_have_no_advantage(chain: list[float], samples: int) -> None:
    group = chains_of([chain] * samples)
    assert set(advantages([chain] * samples)) == {0.0}
    assert group.equal_rewards
    assert group.reward_std == 0.0


def test_equal_episodes_in_another_order_of_rows_have_no_advantage() -> None:
    chains = [[0.81, 0.9, 1.0], [1.0, 0.81, 0.9], [0.9, 1.0, 0.81]]
    assert set(advantages(chains)) == {0.0}
    assert chains_of(chains).equal_rewards


rewards = st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.9, 1.0]), st.floats(-10, 10, width=32))
groups = st.lists(st.lists(rewards, min_size=1, max_size=4), min_size=2, max_size=6)


@given(groups)
@example([[0.1, 0.2, 0.6], [0.3]])
@example([[0.0, 1.0], [0.5]])
@example([[0.0, 1.0], [0.5, 0.5001]])
@example([[0.81, 0.9, 1.0], [0.8101, 0.9, 1.0]])
def test_no_advantage_is_larger_than_its_group_can_give(chains: list[list[float]]) -> None:
    """A value that is divided by the deviation of values it is one of stays within √(samples × rows)."""
    rows = max(map(len, chains))
    assert max(map(abs, advantages(chains))) <= (len(chains) * rows) ** 0.5 + 1e-3


@given(groups)
def test_dataflow_and_trainer_call_the_same_groups_equal(chains: list[list[float]]) -> None:
    single = [[float(np.float32(reward)) for reward in chain] for chain in chains]
    assert chains_of(single).equal_rewards == (set(advantages(single)) == {0.0})


def test_a_row_is_divided_by_what_rows_differ_by() -> None:
    chains = [[0.0, 1.0], [0.5, 0.5], [1.0, 1.0]]
    means = np.array([0.5, 0.5, 1.0])
    spread = np.sqrt(means.var(ddof=1) + np.mean([0.25, 0.0, 0.0]))
    expected = (np.array([0, 1, 0.5, 0.5, 1, 1]) - means.mean()) / (spread + 1e-5)
    assert advantages(chains) == pytest.approx(np.repeat(expected, 2).tolist(), abs=1e-5)
