"""A workflow of one's own: an answer that is not right yet gets a second try."""

from uuid import uuid4

import numpy as np

from astraflow.core.data import ModelRequest, Trajectory, Turn, Value
from astraflow.core.workflow.api.reward_api import AsyncRewardWrapper
from astraflow.core.workflow.api.workflow_api import EpisodeWorkflow


class SecondTry(EpisodeWorkflow):
    """Of reward_fn, gconfig and tokenizer a workflow names what it needs; `hint` is a key of its own in the YAML."""

    def __init__(self, reward_fn, gconfig, tokenizer, hint: str = "again") -> None:
        super().__init__(gconfig)
        self.reward = AsyncRewardWrapper(reward_fn)
        self.tokenizer = tokenizer
        self.hint = hint

    async def run(self, engine, task) -> Trajectory | list[Trajectory]:
        """One episode. What the model sees next must extend what it saw and sampled; where it does not, it branches."""
        messages = list(task.data["messages"])
        context = self.tokenizer.encode_chat(messages)
        first, reward = await self._turn(engine, task, context)
        turns = [Turn.of(np.array(context, np.int32), first)]
        if reward == Value(1.0) or not isinstance(reward, Value):
            return self._trajectory(task, turns, reward, first)
        seen = [*context, *first.output_tokens.tolist()]
        messages += [
            {"role": "assistant", "content": self.tokenizer.decode(first.output_tokens)},
            {"role": "user", "content": self.hint},
        ]
        context = self.tokenizer.encode_chat(messages)
        second, reward = await self._turn(engine, task, context)
        if context[: len(seen)] == seen:
            turns.append(Turn.of(np.array(context[len(seen) :], np.int32), second))
            return self._trajectory(task, turns, reward, second)
        branch = [Turn.of(np.array(context, np.int32), second)]
        return [self._trajectory(task, turns, reward, first), self._trajectory(task, branch, reward, second)]

    async def _turn(self, engine, task, context):
        request = ModelRequest(
            rid=uuid4().hex, input_ids=np.array(context, np.int32), gconfig=task.gconfig, model_id=task.model_id
        )
        response = await engine.agenerate(request)
        sampled = response.output_tokens.tolist()
        text = self.tokenizer.decode(sampled)
        return response, await self.reward(self.tokenizer.decode(context), text, context, sampled, **task.data)

    def _trajectory(self, task, turns, reward, last) -> Trajectory:
        return Trajectory(
            task_id=task.task_id,
            group_id=task.group_id,
            sample_id=task.sample_id,
            model_id=task.model_id,
            turns=tuple(turns),
            reward=reward,
            stop=last.stop_reason,
        )
