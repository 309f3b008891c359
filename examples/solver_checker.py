"""A workflow of two policies: one answers, the other says whether that is right; each is trained on its own part."""

from uuid import uuid4

import numpy as np

from astraflow.core.data import ModelRequest, Trajectory, Turn, Value
from astraflow.core.workflow.api.reward_api import AsyncRewardWrapper
from astraflow.core.workflow.api.workflow_api import EpisodeWorkflow

RIGHT = "1"


class SolverChecker(EpisodeWorkflow):
    """`solver` and `checker` are models of `raas.models`; an episode gives each a trajectory with its own reward."""

    def __init__(self, reward_fn, gconfig, tokenizer, solver: str = "solver", checker: str = "checker") -> None:
        super().__init__(gconfig)
        self.reward = AsyncRewardWrapper(reward_fn)
        self.tokenizer = tokenizer
        self.solver, self.checker = solver, checker

    async def run(self, engine, task) -> list[Trajectory]:
        """The solver is rewarded for a right answer, the checker for a right verdict on it."""
        question = list(task.data["messages"])
        context = self.tokenizer.encode_chat(question)
        answer, text = await self._ask(engine, task, self.solver, context)
        reward = await self.reward(
            self.tokenizer.decode(context), text, context, answer.output_tokens.tolist(), **task.data
        )
        if not isinstance(reward, Value):
            return [self._trajectory(task, self.solver, context, answer, reward)]
        shown = [*question, {"role": "assistant", "content": text}, {"role": "user", "content": RIGHT}]
        seen = self.tokenizer.encode_chat(shown)
        verdict, said = await self._ask(engine, task, self.checker, seen)
        agreed = said.strip().startswith(RIGHT) == (reward.value > 0)
        return [
            self._trajectory(task, self.solver, context, answer, reward),
            self._trajectory(task, self.checker, seen, verdict, Value(float(agreed))),
        ]

    async def _ask(self, engine, task, model_id, context):
        request = ModelRequest(
            rid=uuid4().hex, input_ids=np.array(context, np.int32), gconfig=task.gconfig, model_id=model_id
        )
        response = await engine[model_id].agenerate(request)
        return response, self.tokenizer.decode(response.output_tokens)

    def _trajectory(self, task, model_id, context, response, reward) -> Trajectory:
        return Trajectory(
            task_id=task.task_id,
            group_id=task.group_id,
            sample_id=task.sample_id,
            model_id=model_id,
            agent=model_id,
            turns=(Turn.of(np.array(context, np.int32), response),),
            reward=reward,
            stop=response.stop_reason,
        )
