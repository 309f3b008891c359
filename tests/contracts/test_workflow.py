"""Both workflow contracts give the same records: ours (an episode a call) and the public one (padded, a group)."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.core.data import GenerationHyperparameters, ModelRequest, StopReason
from astraflow.core.data.trajectory import Episode, GroupResult
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.workflow.api.engine_api import ScriptedInference
from astraflow.core.workflow.api.group import GroupTask
from astraflow.core.workflow.api.reward_api import AsyncRewardWrapper, ServedReward
from astraflow.core.workflow.api.workflow_api import RolloutWorkflow, concat_padded_tensors
from astraflow.core.workflow.impl.rlvr import RLVRWorkflow
from astraflow.errors import EngineError

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_ids[0]
GCONFIG = GenerationHyperparameters(n_samples=3, max_new_tokens=4)
ROW = {"messages": [{"role": "user", "content": "6*7="}], "answer": "42", "task_id": "t"}


def score(prompt: str, completions: str, prompt_ids: Any, completion_ids: Any, answer: str, **row: Any) -> float:
    return float(completions == answer)


class PublicRLVR(RolloutWorkflow):
    """The public contract as its guides write it: all samples in one call, padded dicts concatenated."""

    library: Any = np

    def __init__(self, reward_fn: Any, gconfig: GenerationHyperparameters, tokenizer: Any) -> None:
        self.reward = AsyncRewardWrapper(reward_fn)
        self.gconfig = gconfig
        self.tokenizer = tokenizer

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any]:
        prompt = self.tokenizer.apply_chat_template(data["messages"])
        ids = self.tokenizer.encode(prompt)
        requests = [
            ModelRequest(rid=str(n), input_ids=np.array(ids, np.int32), gconfig=self.gconfig)
            for n in range(self.gconfig.n_samples)
        ]
        responses = await asyncio.gather(*(engine.agenerate(request) for request in requests))
        rows = []
        for response in responses:
            sampled = response.output_tokens.tolist()
            reward = await self.reward(prompt, self.tokenizer.decode(sampled), ids, sampled, **data)
            n, m = len(ids), len(sampled)
            rows.append(
                {
                    "input_ids": self.row([*ids, *sampled], "int32"),
                    "loss_mask": self.row([0] * n + [1] * m, "int32"),
                    "logprobs": self.row([0.0] * n + response.output_logprobs.tolist(), "float32"),
                    "versions": self.row([-1] * n + response.output_versions.tolist(), "int32"),
                    "attention_mask": self.row([True] * (n + m), "bool"),
                    "rewards": np.array([reward.value], np.float32),
                }
            )
        return concat_padded_tensors(rows)

    def row(self, values: list[Any], dtype: str) -> Any:
        return np.array([values], dtype)


class TorchRLVR(PublicRLVR):
    """The same with torch tensors."""

    def row(self, values: list[Any], dtype: str) -> Any:
        return torch.tensor([values], dtype=getattr(torch, dtype))


WORKFLOWS = [RLVRWorkflow, PublicRLVR, TorchRLVR]


def script() -> ScriptedInference:
    """A right answer, a wrong longer one, one that is cut by length."""
    answers = iter([[*TOKENIZER.encode("42"), END], [*TOKENIZER.encode("427"), END], TOKENIZER.encode("42424242")])
    return ScriptedInference(lambda request: next(answers), version=6)


def run(workflow: type, engine: Any = None, row: dict[str, Any] = ROW) -> GroupResult:
    made = workflow(ServedReward(score), GCONFIG, TOKENIZER)
    group = GroupTask(task_id="t", group_id=2, data=row, n_samples=3, model_id="model0")
    result = asyncio.run(made.run_group(engine or script(), group))
    return result.check()


def facts(result: GroupResult) -> list[Any]:
    rows = []
    for episode in result.episodes:
        assert isinstance(episode, Episode)
        for t in episode.trajectories:
            arrays = [getattr(t.arrays, name).tolist() for name in ("ids", "mask", "logprobs", "versions")]
            rows.append((t.task_id, t.group_id, t.sample_id, t.model_id, len(t.turns), arrays, t.reward, t.stop))
    return rows


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_the_records_are_the_same(workflow: type) -> None:
    got = facts(run(workflow))
    assert got == facts(run(RLVRWorkflow))
    assert [row[-2].value for row in got] == [1.0, 0.0, 0.0]
    assert [row[-1] for row in got] == [StopReason.STOP, StopReason.STOP, StopReason.LENGTH]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_an_engine_that_fails_is_data(workflow: type) -> None:
    def fails(request: ModelRequest) -> list[int]:
        raise EngineError("full")

    result = run(workflow, ScriptedInference(fails))
    assert [episode.reason for episode in result.episodes] == ["engine"] * 3


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_row_that_is_wrong_is_data(workflow: type) -> None:
    result = run(workflow, row={"answer": "42"})
    assert [episode.reason for episode in result.episodes] == ["crash"] * 3
