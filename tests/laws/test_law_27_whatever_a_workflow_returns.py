"""LAW 27. One generation that fails ends that sample, not the run: whatever a workflow returns, the trainer survives.

What passes the border of padded arrays is exactly what was returned, passes curation and trains; the rest is a
DataError that names the key or the row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.core.data import Batch, Failed
from astraflow.core.data.trajectory import Episode, GroupResult
from astraflow.core.model import new_model
from astraflow.core.workflow.api.engine_api import InferenceEngine
from astraflow.core.workflow.api.group import GroupPolicy, GroupTask
from astraflow.core.workflow.api.padded import episodes_of
from astraflow.core.workflow.api.workflow_api import RolloutWorkflow
from astraflow.dataflow.curation import Occurrence, groups_of
from astraflow.errors import DataError
from astraflow.train_worker.config import ActorConfig, OptimizerConfig
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.trainer.policy_batch import PolicyBatch
from astraflow.train_worker.trainer.policy_objective import PolicyObjective

GROUP = GroupTask(task_id="t", group_id=1, data={}, n_samples=2, policy=GroupPolicy())
DECODER = new_model("tiny-0.2m", seed=2)


def padded(**changes: Any) -> dict[str, Any]:
    """Two samples of four tokens, the last two sampled."""
    return {
        "input_ids": np.array([[1, 2, 3, 4], [1, 2, 5, 6]], np.int32),
        "loss_mask": np.array([[0, 0, 1, 1], [0, 0, 1, 1]], np.int32),
        "logprobs": np.full((2, 4), -0.5, np.float32),
        "versions": np.zeros((2, 4), np.int32),
        "attention_mask": np.ones((2, 4), bool),
        "rewards": np.array([1.0, 0.0], np.float32),
        **changes,
    }


def reaches_the_trainer(arrays: dict[str, Any]) -> Batch | None:
    """Go the whole way that a workflow's return goes; the batch that trained, if any row had something to train."""
    result = GroupResult(group_id=1, episodes=episodes_of(arrays, GROUP))
    groups = [group for group in groups_of(Occurrence(1, 0, "t"), result, ["default"]) if group.trajectories]
    if not groups:
        return None
    batch = Batch.of(groups).check()
    actor = ActorConfig()
    policy = PolicyBatch.of(batch, actor, 64)
    engine = NativeEngine(DECODER, OptimizerConfig(lr=1e-30), 1)
    for part in policy.minibatches(actor):
        result_of_step = engine.train_step(part.rows, part.weights, PolicyObjective.of(actor, policy.rows))
        assert np.isfinite(result_of_step.grad_norm)
    return batch


REFUSED: dict[str, dict[str, Any]] = {
    "sampled from its first token": {"loss_mask": [[1, 1, 1, 1], [0, 0, 1, 1]]},
    "an id that int32 does not hold": {"input_ids": np.array([[1, 2, 2**32 + 7, 4], [1, 2, 5, 6]])},
    "an id that bfloat16 rounded": {"input_ids": torch.tensor([[1, 2, 301, 4], [1, 2, 5, 6]], dtype=torch.bfloat16)},
    "an id between two": {"input_ids": np.array([[1, 2, 3.5, 4], [1, 2, 5, 6]])},
    "a mask that wraps to 0": {"loss_mask": np.array([[0, 0, 256, 1], [0, 0, 1, 1]])},
    "a mask of a half": {"loss_mask": np.array([[0, 0, 0.5, 1], [0, 0, 1, 1]])},
    "a mask that is no number": {"loss_mask": np.array([[0, 0, np.nan, 1], [0, 0, 1, 1]])},
    "a mask of words": {"loss_mask": np.array([["no", "no", "yes", "yes"]] * 2)},
    "an attention mask of two": {"attention_mask": np.full((2, 4), 2)},
    "a version between two": {"versions": np.full((2, 4), 1.7)},
    "a version that int32 does not hold": {"versions": np.full((2, 4), 2**33)},
    "a version that float16 rounded": {"versions": np.full((2, 4), 2049, np.float16)},
    "half a beginning": {"begin_of_trajectory": np.array([1, 0.5])},
    "logprobs of objects": {"logprobs": np.array([[None] * 4] * 2, object)},
    "rows of unequal length": {"input_ids": [[1, 2, 3, 4], [1, 2, 5]]},
    "a policy between two": {"model_ids": np.array([0.5, 0.0])},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_record_cannot_hold_is_refused_where_it_is_returned(case: str) -> None:
    with pytest.raises(DataError, match=r"row \d|padded arrays: \w+|trajectory \d+"):
        episodes_of(padded(**REFUSED[case]), GROUP)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float16, np.float32, np.float64])
def test_numbers_that_a_type_holds_exactly_are_taken_whatever_the_type(dtype: type) -> None:
    arrays = padded()
    batch = reaches_the_trainer(
        arrays | {key: arrays[key].astype(dtype) for key in ("input_ids", "loss_mask", "versions", "attention_mask")}
    )
    assert batch is not None
    assert batch.input_ids.tolist() == [1, 2, 3, 4, 1, 2, 5, 6]
    assert batch.loss_mask.tolist() == [0, 0, 1, 1] * 2


class NoEngine:
    """An engine that is never asked."""

    @asynccontextmanager
    async def managed_session(self) -> AsyncIterator[NoEngine]:
        yield self


class Returns(RolloutWorkflow):
    """A workflow that gives one set of arrays."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.arrays = arrays

    async def arun_episode(self, engine: Any, data: Any) -> dict[str, Any]:
        return self.arrays


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_return_is_a_failure_of_its_samples(case: str) -> None:
    result = asyncio.run(Returns(padded(**REFUSED[case])).run_group(cast(InferenceEngine, NoEngine()), GROUP))
    assert result is not None
    assert [type(episode) for episode in result.episodes] == [Failed, Failed]


NUMBERS = st.sampled_from([0, 1, -1, 0.5, 2, 7, 99, 255, 256, 300, 2**24 + 1, 2**31, 2**32 + 7, 2**63, -90, -0.25])
SPECIAL = st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 1e-40, 3.4e38])
DTYPES = st.sampled_from(
    ["int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "bool"]
)


@st.composite
def returns(draw: st.DrawFn) -> dict[str, Any]:
    """Right arrays in which some keys hold other numbers, of other types, at some places."""
    arrays = padded()
    for key in draw(st.lists(st.sampled_from(sorted(arrays)), max_size=3, unique=True)):
        array = arrays[key].astype(np.float64)
        for _ in range(draw(st.integers(0, 3))):
            array.flat[draw(st.integers(0, array.size - 1))] = draw(NUMBERS | SPECIAL)
        with np.errstate(all="ignore"):
            arrays[key] = array.astype(draw(DTYPES))
        if arrays[key].dtype.kind == "f" and draw(st.booleans()):
            arrays[key] = torch.from_numpy(arrays[key]).to(torch.bfloat16)
    if draw(st.booleans()):
        arrays["begin_of_trajectory"] = np.array([1, draw(st.integers(0, 2))])
    return arrays


def sampled(episodes: tuple[Any, ...]) -> Iterator[tuple[int, float]]:
    for episode in episodes:
        assert isinstance(episode, Episode | Failed)
        for trajectory in episode.trajectories if isinstance(episode, Episode) else ():
            turn = trajectory.arrays
            yield from zip(turn.ids[turn.mask == 1].tolist(), turn.versions[turn.mask == 1].tolist(), strict=True)


@settings(max_examples=150)
@given(returns())
def test_what_passes_the_border_trains_and_is_what_was_returned(arrays: dict[str, Any]) -> None:
    try:
        episodes = episodes_of(arrays, GROUP)
    except DataError:
        return
    given_ = {key: value.float().numpy() if hasattr(value, "float") else value for key, value in arrays.items()}
    mask = given_["loss_mask"] == 1
    returned = zip(given_["input_ids"][mask].tolist(), given_["versions"][mask].tolist(), strict=True)
    assert list(sampled(episodes)) == list(returned)
    in_vocabulary = all(0 <= token < DECODER.config.vocab_size for token in given_["input_ids"].ravel())
    if in_vocabulary:  # what is beyond it is dropped by curation, which knows the model
        reaches_the_trainer(arrays)
