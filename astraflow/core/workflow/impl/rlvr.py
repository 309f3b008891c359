"""Single-turn reinforcement learning with verifiable rewards: one prompt, one answer, one reward."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol
from uuid import uuid4

import msgspec
import numpy as np

from astraflow.core.data import GenerationHyperparameters, ModelRequest, Trajectory, Turn
from astraflow.core.data.trajectory import Row
from astraflow.core.workflow.api.engine_api import InferenceEngine
from astraflow.core.workflow.api.reward_api import AsyncRewardWrapper, ServedReward
from astraflow.core.workflow.api.workflow_api import EpisodeTask, EpisodeWorkflow
from astraflow.core.workflow.reward.shipping import RewardFunction
from astraflow.errors import DataError


class ChatTokenizer(Protocol):
    """What is asked of a tokenizer here (core.text's, or transformers')."""

    def apply_chat_template(self, messages: Any, add_generation_prompt: bool = True, **kwargs: Any) -> Any: ...

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]: ...

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str: ...


class Prompt(msgspec.Struct, frozen=True):
    """A row's prompt, encoded once for all samples of its group."""

    text: str
    ids: list[int]
    tokens: np.ndarray
    """int32 [P], the same ids."""


class RLVRWorkflow(EpisodeWorkflow):
    """messages → chat template → one generation → reward.

    LAW 1: the trajectory holds the ids that were sent and that were sampled; text is made of them for the reward only.
    `enable_thinking` is passed to the chat template; None leaves the template's own default.
    """

    def __init__(
        self,
        reward_fn: RewardFunction | ServedReward,
        gconfig: GenerationHyperparameters,
        tokenizer: ChatTokenizer,
        enable_thinking: bool | None = None,
    ) -> None:
        super().__init__(gconfig)
        self.reward = AsyncRewardWrapper(reward_fn)
        self.tokenizer = tokenizer
        self.template_options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}

    def prepare(self, data: Row) -> Prompt:
        if not isinstance(data.get("messages"), list):
            raise DataError(f"the row of task {data.get('task_id')!r} has no messages")
        text = self.tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True, **self.template_options)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return Prompt(text, ids, np.array(ids, np.int32))

    async def run(self, engine: InferenceEngine, task: EpisodeTask) -> Trajectory:
        prompt: Prompt = task.shared
        asked = perf_counter()
        request = ModelRequest(rid=uuid4().hex, input_ids=prompt.tokens, gconfig=task.gconfig, model_id=task.model_id)
        response = await engine.agenerate(request)
        sampled = response.output_tokens.tolist()
        completion = self.tokenizer.decode(sampled, skip_special_tokens=task.gconfig.skip_special_tokens)
        generated = perf_counter()
        reward = await self.reward(prompt.text, completion, prompt.ids, sampled, **task.data)
        return Trajectory(
            task_id=task.task_id,
            group_id=task.group_id,
            sample_id=task.sample_id,
            model_id=task.model_id,
            turns=(Turn.of(prompt.tokens, response),),
            reward=reward,
            stop=response.stop_reason,
            timing={"generate": generated - asked, "reward": perf_counter() - generated},
        )
