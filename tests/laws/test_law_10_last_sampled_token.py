"""LAW 10. A reward lands on the last *sampled* token, whatever follows it (tool text at the end loses nothing)."""

from __future__ import annotations

import pytest
import torch

from astraflow.train_worker.algorithms.advantage import gae, outcome_advantages, outcome_rewards


@pytest.mark.parametrize("trailing", [0, 1, 5])
def test_trailing_tool_text(trailing: int) -> None:
    mask = torch.tensor([0, 1, 1] + [0] * trailing)
    rows, outcome = torch.tensor([0, len(mask)]), torch.tensor([2.0])
    rewards = outcome_rewards(outcome, mask, rows)
    assert rewards.tolist() == [0, 0, 2] + [0] * trailing
    assert gae(rewards, torch.zeros(len(mask)), mask, rows)[0].tolist() == [0, 2, 2] + [0] * trailing
    assert outcome_advantages(outcome, mask, rows).tolist() == [0, 2, 2] + [0] * trailing


def test_the_next_row_is_not_touched() -> None:
    mask, rows = torch.tensor([0, 1, 0, 0, 1, 0]), torch.tensor([0, 3, 6])
    assert outcome_rewards(torch.tensor([1.0, -1.0]), mask, rows).tolist() == [0, 1, 0, 0, -1, 0]
