"""LAW 1: Trained ids are the sampled ids, for every turn of every episode; nothing is decoded and encoded again."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import GenerationHyperparameters
from astraflow.core.data.trajectory import Episode
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.workflow.api.engine_api import ScriptedInference
from astraflow.core.workflow.api.group import GroupTask
from astraflow.core.workflow.api.padded import episodes_of, pad_episodes
from astraflow.core.workflow.api.reward_api import ServedReward
from astraflow.core.workflow.impl.rlvr import RLVRWorkflow

TOKENIZER = tiny_tokenizer()
ROW = {"messages": [{"role": "user", "content": "1+1="}]}


@pytest.mark.parametrize("through_padding", [False, True])
@given(sampled=st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=12))
def test_whatever_was_sampled_is_what_trains(through_padding: bool, sampled: list[int]) -> None:
    # any ids at all: special tokens, unknown ones and padding would not survive decoding
    workflow = RLVRWorkflow(
        ServedReward(lambda *a, **k: 1.0), GenerationHyperparameters(n_samples=1, max_new_tokens=16), TOKENIZER
    )
    group = GroupTask(task_id="t", group_id=1, data=ROW, n_samples=1)
    engine = ScriptedInference(lambda request: sampled)
    episodes = asyncio.run(workflow.run_group(engine, group)).episodes
    if through_padding:
        arrays = pad_episodes(episodes)
        assert arrays is not None
        episodes = episodes_of(arrays, group)
    (episode,) = episodes
    assert isinstance(episode, Episode)
    (trajectory,) = episode.trajectories
    trained = trajectory.arrays
    assert trained.ids[trained.mask == 1].tolist() == sampled
    assert trained.ids[trained.mask == 0].tolist() == engine.requests[0].input_ids.tolist()
