"""Padded arrays at the border of the public workflow contract."""

import numpy as np
import pytest
import torch

from astraflow.core.data import Invalid, StopReason, Value
from astraflow.core.data.trajectory import Episode, Failed
from astraflow.core.workflow.api.group import GroupTask
from astraflow.core.workflow.api.padded import as_array, concat_padded_tensors, episodes_of, pad_episodes
from astraflow.errors import DataError

GROUP = GroupTask(task_id="t", group_id=3, data={}, n_samples=2, model_id="model0")


def padded(**changes) -> dict:
    """Two samples: one of two turns with tool text between, one short."""
    arrays = {
        "input_ids": np.array([[1, 2, 3, 4, 5, 6], [1, 2, 9, 0, 0, 0]], np.int32),
        "loss_mask": np.array([[0, 0, 1, 0, 1, 1], [0, 0, 1, 0, 0, 0]], np.int32),
        "logprobs": np.array([[0, 0, -1, 0, -2, -3], [0, 0, -4, 0, 0, 0]], np.float32),
        "versions": np.array([[-1, -1, 5, -1, 5, 6], [0, 0, 7, 0, 0, 0]], np.int32),
        "attention_mask": np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], bool),
        "rewards": np.array([1.0, np.nan], np.float32),
    }
    return {key: value for key, value in {**arrays, **changes}.items() if value is not None}


@pytest.mark.parametrize("reward", [np.nan, np.inf, 1e300])
def test_a_reward_that_a_batch_cannot_hold_is_invalid(reward: float) -> None:
    episodes = episodes_of(padded(rewards=np.array([reward, 2.0])), GROUP)
    assert [e.trajectories[0].reward for e in episodes if isinstance(e, Episode)] == [Invalid("nan"), Value(2.0)]


def test_rows_become_trajectories_cut_into_turns() -> None:
    first, second = episodes_of(padded(), GROUP)
    assert isinstance(first, Episode)
    assert isinstance(second, Episode)
    (a,), (b,) = first.trajectories, second.trajectories
    assert [turn.ids.tolist() for turn in a.turns] == [[1, 2, 3], [4, 5, 6]]
    assert a.arrays.versions.tolist() == [-1, -1, 5, -1, 5, 6]
    assert b.arrays.ids.tolist() == [1, 2, 9], "padding is gone, whatever its token value"
    assert b.arrays.versions.tolist() == [-1, -1, 7], "what was not sampled has no version"
    assert (a.sample_id, b.sample_id) == (3 << 16, (3 << 16) + 1)
    assert (a.reward, b.reward) == (Value(1.0), Invalid("nan"))
    assert (a.model_id, a.group_id, a.task_id) == ("model0", 3, "t")


def test_tool_text_at_the_end_is_a_turn_without_sampled_tokens() -> None:
    mask = np.array([[0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0]], np.int32)
    versions = np.where(mask == 1, 5, -1)
    (first, _) = episodes_of(padded(loss_mask=mask, versions=versions), GROUP)
    assert [turn.mask.tolist() for turn in first.trajectories[0].turns] == [[0, 0, 1, 1], [0, 0]]


def test_torch_tensors_are_taken_as_they_are() -> None:
    tensors = {key: torch.from_numpy(value) for key, value in padded().items()}
    tensors["logprobs"] = tensors["logprobs"].to(torch.bfloat16).requires_grad_()
    (first, _) = episodes_of(tensors, GROUP)
    assert first.trajectories[0].arrays.logprobs.tolist() == [0, 0, -1, 0, -2, -3]
    assert as_array(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32


def test_a_row_that_does_not_begin_a_trajectory_belongs_to_the_sample_before() -> None:
    arrays = padded(begin_of_trajectory=np.array([1, 0]), rewards=np.array([1.0, 1.0]), model_ids=np.array([0, 1]))
    episode, missing = episodes_of(arrays, GROUP)
    assert isinstance(episode, Episode)
    assert [t.model_id for t in episode.trajectories] == ["model0", "model1"]
    assert len({t.sample_id for t in episode.trajectories}) == 1
    assert missing == Failed("cut", "the workflow returned 1 of 2 samples")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": None}, "lack rewards"),
        ({"multi_modal_input": [1, 2]}, "hold multi_modal_input, which nothing consumes; known keys: input_ids"),
        ({"input_ids": np.array([1, 2])}, r"input_ids has shape \(2,\)"),
        ({"versions": np.zeros((2, 5), np.int32)}, r"versions has shape \(2, 5\), expected \(2, 6\)"),
        ({"rewards": np.zeros(3)}, r"rewards has shape \(3,\)"),
        ({"attention_mask": np.array([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0]])}, "row 1: attention_mask is not right"),
        ({"loss_mask": np.array([[0, 0, 1, 0, 1, 1], [0, 0, 1, 1, 0, 0]])}, "row 1: loss_mask marks padding"),
        ({"logprobs": np.full((2, 6), 0.5, np.float32)}, "row 0, turn 0: a sampled token's logprob"),
        ({"versions": np.full((2, 6), -1, np.int32)}, "row 0, turn 0: versions must be"),
        ({"begin_of_trajectory": np.array([0, 1])}, "the first must begin a trajectory"),
    ],
)
def test_what_is_wrong_is_named(changes: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        episodes_of(padded(**changes), GROUP)


def test_more_samples_than_were_asked_for_are_refused() -> None:
    one = GroupTask(task_id="t", group_id=3, data={}, n_samples=1)
    with pytest.raises(DataError, match="hold 2 samples, 1 were asked for"):
        episodes_of(padded(), one)


def test_padding_and_reading_are_inverse() -> None:
    episodes = episodes_of(padded(), GROUP)
    padded_again = pad_episodes([*episodes, Failed("crash")])
    assert padded_again is not None
    again = episodes_of(padded_again, GROUP)
    for before, after in zip(episodes, again, strict=True):
        (a,), (b,) = before.trajectories, after.trajectories
        assert [turn.ids.tolist() for turn in a.turns] == [turn.ids.tolist() for turn in b.turns]
        assert a.arrays.logprobs.tolist() == b.arrays.logprobs.tolist()
        assert (a.reward, a.stop, a.sample_id) == (b.reward, b.stop, b.sample_id)


def test_branches_are_marked_in_the_padded_form() -> None:
    arrays = padded(begin_of_trajectory=np.array([1, 0]), rewards=np.array([1.0, 1.0]))
    out = pad_episodes(episodes_of(arrays, GROUP))
    assert out["begin_of_trajectory"].tolist() == [True, False]
    assert pad_episodes([Failed("crash")]) is None


def test_concatenation_pads_to_the_longest() -> None:
    short = {"input_ids": torch.ones(1, 2), "attention_mask": torch.ones(1, 2, dtype=torch.bool), "rewards": [1.0]}
    wide = {"input_ids": np.ones((2, 3)), "attention_mask": np.ones((2, 3), bool), "rewards": np.array([2.0, 3.0])}
    both = concat_padded_tensors([short, wide], pad_value=-7)
    assert both["input_ids"].tolist() == [[1, 1, -7], [1, 1, 1], [1, 1, 1]]
    assert both["attention_mask"].tolist() == [[True, True, False], [True] * 3, [True] * 3]
    assert both["rewards"].tolist() == [1.0, 2.0, 3.0]


def test_dicts_of_different_form_do_not_concatenate() -> None:
    with pytest.raises(DataError, match="padded dict 1"):
        concat_padded_tensors([{"a": [1]}, {"b": [1]}])
    with pytest.raises(DataError, match="at least one"):
        concat_padded_tensors([])


def test_the_stop_reason_defaults_to_stop_without_an_engines_word() -> None:
    (first, _) = episodes_of(padded(), GROUP)
    assert first.trajectories[0].stop is StopReason.STOP
