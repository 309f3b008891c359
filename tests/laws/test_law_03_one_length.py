"""LAW 3: ids, mask, logprobs, versions have one length at every border; a violation names the turn."""

import asyncio
from typing import Any

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, StopReason, Trajectory, Turn, Value
from astraflow.core.data.trajectory import Failed
from astraflow.core.workflow.api.engine_api import ScriptedInference
from astraflow.core.workflow.api.group import GroupTask
from astraflow.core.workflow.api.workflow_api import EpisodeWorkflow, RolloutWorkflow

GROUP = GroupTask(task_id="t", group_id=1, data={}, n_samples=1)


def turn(**changes: np.ndarray) -> Turn:
    arrays: dict[str, Any] = {
        "ids": np.array([1, 2], np.int32),
        "mask": np.array([0, 1], np.uint8),
        "logprobs": np.array([0, -1], np.float32),
        "versions": np.array([-1, 0], np.int32),
    }
    return Turn(**{**arrays, **changes})


class Misaligned(EpisodeWorkflow):
    """The second turn lacks one value of one array."""

    def __init__(self, field: str) -> None:
        super().__init__(GenerationHyperparameters())
        self.field = field

    async def run(self, engine, task) -> Trajectory:
        broken = turn(**{self.field: getattr(turn(), self.field)[:1]})
        return Trajectory(
            task_id=task.task_id,
            group_id=task.group_id,
            sample_id=task.sample_id,
            turns=(turn(), broken),
            reward=Value(1.0),
            stop=StopReason.STOP,
        )


class MisalignedArrays(RolloutWorkflow):
    """The same through the public contract."""

    def __init__(self, field: str) -> None:
        self.field = field

    async def arun_episode(self, engine, data) -> dict:
        names = {"input_ids": "ids", "loss_mask": "mask", "logprobs": "logprobs", "versions": "versions"}
        arrays = {name: getattr(turn(), field)[None, :] for name, field in names.items()}
        arrays[self.field] = arrays[self.field][:, :1]
        return {**arrays, "attention_mask": np.ones((1, 2), bool), "rewards": np.ones(1)}


def run(workflow: RolloutWorkflow) -> Failed:
    result = asyncio.run(workflow.run_group(ScriptedInference(lambda request: []), GROUP))
    (episode,) = result.episodes
    assert isinstance(episode, Failed)
    return episode


@pytest.mark.parametrize("field", ["ids", "mask", "logprobs", "versions"])
def test_an_episode_names_the_turn(field: str) -> None:
    failed = run(Misaligned(field))
    assert failed.reason == "crash"
    assert f"turn 1 of trajectory {1 << 16} of task t: arrays differ in shape" in failed.detail


@pytest.mark.parametrize("field", ["loss_mask", "logprobs", "versions"])
def test_padded_arrays_name_the_array(field: str) -> None:
    assert f"padded arrays: {field} has shape (1, 1), expected (1, 2)" in run(MisalignedArrays(field)).detail
