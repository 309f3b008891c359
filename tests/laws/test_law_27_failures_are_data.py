"""LAW 27: One generation that fails ends that sample, not the run; a reward that fails on every call stops the run with
its first traceback instead of filtering for ever (Dataflow stops it; here: the traceback reaches Dataflow)."""

import asyncio

from astraflow.core.data import GenerationHyperparameters, Invalid, ModelRequest
from astraflow.core.data.trajectory import Episode, Failed, GroupResult
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.workflow.api.engine_api import ScriptedInference
from astraflow.core.workflow.api.group import GroupTask
from astraflow.core.workflow.api.reward_api import ServedReward
from astraflow.core.workflow.impl.rlvr import RLVRWorkflow
from astraflow.errors import EngineError

TOKENIZER = tiny_tokenizer()
ROW = {"messages": [{"role": "user", "content": "1+1="}]}


def run(engine: ScriptedInference, reward) -> GroupResult:
    gconfig = GenerationHyperparameters(n_samples=3, max_new_tokens=4)
    workflow = RLVRWorkflow(ServedReward(reward), gconfig, TOKENIZER)
    group = GroupTask(task_id="t", group_id=1, data=ROW, n_samples=3)
    return asyncio.run(workflow.run_group(engine, group))


def test_one_generation_that_fails_ends_that_sample() -> None:
    calls: list[ModelRequest] = []

    def second_fails(request: ModelRequest) -> list[int]:
        calls.append(request)
        if len(calls) == 2:
            raise EngineError("out of cache")
        return [20, 21]

    first, second, third = run(ScriptedInference(second_fails), lambda *a, **k: 1.0).episodes
    assert isinstance(first, Episode)
    assert isinstance(third, Episode)
    assert second == Failed("engine", "EngineError: out of cache")


def test_a_reward_that_crashes_is_an_invalid_sample_with_its_traceback() -> None:
    def crashes(*args: object, **row: object) -> float:
        raise KeyError("answer")

    for episode in run(ScriptedInference(lambda request: [20]), crashes).episodes:
        assert isinstance(episode, Episode)
        (trajectory,) = episode.trajectories
        assert isinstance(trajectory.reward, Invalid)
        assert trajectory.reward.reason == "crash"
        assert "KeyError: 'answer'" in trajectory.reward.detail
        assert 'raise KeyError("answer")' in trajectory.reward.detail
