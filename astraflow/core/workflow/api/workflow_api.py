"""What an episode is: the public workflow contract and ours, behind one door (`run_group`).

`RolloutWorkflow` is the public contract: called once per group, it samples all episodes itself and returns padded
arrays. `EpisodeWorkflow` writes one episode and leaves the group to its base class: deadlines, retries and failures as
data. A RaaS calls `run_group` on either and gets the same records.

LAW 27: one generation that fails ends that sample, not the run. What an episode raises becomes Failed(reason, detail)
here, at the border of foreign code; what is not its own passes (see errors.is_foreign).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from time import perf_counter
from typing import Any

from astraflow.core.data import Failed, GenerationHyperparameters, StopReason, Trajectory
from astraflow.core.data.trajectory import Episode, EpisodeResult, GroupResult, Row
from astraflow.core.workflow.api.engine_api import InferenceEngine
from astraflow.core.workflow.api.group import CUT, EpisodeTask, GroupPolicy, GroupTask, Wait
from astraflow.core.workflow.api.group_run import Cut, GroupRun, Start
from astraflow.core.workflow.api.padded import StopLog, concat_padded_tensors, episodes_of, pad_episodes
from astraflow.errors import DataError, EngineError, WireError, brief_traceback, is_foreign, printable

__all__ = [
    "EpisodeTask",
    "EpisodeWorkflow",
    "GroupPolicy",
    "GroupTask",
    "RolloutWorkflow",
    "Wait",
    "concat_padded_tensors",
]


class RolloutWorkflow(ABC):
    """The public contract. `__init__` names those of (reward_fn, gconfig, tokenizer) that it wants and its keywords."""

    @abstractmethod
    async def arun_episode(self, engine: InferenceEngine, data: Row) -> dict[str, Any] | None:
        """Sample gconfig.n_samples episodes of `data`.

        Returns right-padded arrays: input_ids int32 [n, L], loss_mask int32, logprobs float32, versions int32,
        attention_mask bool, rewards float32 [n], optionally model_ids and begin_of_trajectory [n]; or None to reject.
        """

    async def run_group(self, engine: InferenceEngine, group: GroupTask) -> GroupResult | None:
        """Run one occurrence and return checked records; None where the workflow rejected it."""
        start = perf_counter()
        try:
            async with asyncio.timeout(group.policy.episode_timeout_s), engine.managed_session() as session:
                stops = StopLog(session)
                padded = await self.arun_episode(stops, group.data)
            if padded is None:
                return None
            episodes = episodes_of(padded, group, stops)
        except BaseException as error:  # the border of a foreign workflow: LAW 27
            if not is_foreign(error):
                raise
            episodes = (failure(error, group.policy),) * group.n_samples
        return GroupResult(group_id=group.group_id, episodes=episodes, timing={"episodes_s": perf_counter() - start})


class EpisodeWorkflow(RolloutWorkflow):
    """A workflow that writes one episode; its base class makes the group of it."""

    gconfig: GenerationHyperparameters

    def __init__(self, gconfig: GenerationHyperparameters) -> None:
        self.gconfig = gconfig

    @abstractmethod
    async def run(self, engine: InferenceEngine, task: EpisodeTask) -> Trajectory | list[Trajectory]:
        """Run one sample. Several trajectories (branches, agents) share the task's sample_id."""

    def prepare(self, data: Row) -> Any:
        """What all samples of a group share, made once (the encoded prompt); arrives as `task.shared`."""
        return None

    async def run_group(self, engine: InferenceEngine, group: GroupTask) -> GroupResult:
        start = perf_counter()
        try:
            shared = self.prepare(group.data)
        except BaseException as error:  # the border of a foreign workflow: LAW 27
            if not is_foreign(error):
                raise
            lost = (failure(error, group.policy),) * group.n_samples
            return GroupResult(group_id=group.group_id, episodes=lost)
        async with engine.managed_session() as session:
            episodes = await self._samples(session, group, shared)
        timing = {"episodes_s": perf_counter() - start}
        return GroupResult(group_id=group.group_id, episodes=tuple(episodes), timing=timing)

    async def arun_episode(self, engine: InferenceEngine, data: Row) -> dict[str, Any] | None:
        """The public contract, for callers that know only it."""
        group = GroupTask(task_id=str(data.get("task_id", "")), group_id=0, data=data, n_samples=self.gconfig.n_samples)
        return pad_episodes((await self.run_group(engine, group)).episodes)

    async def _samples(self, engine: InferenceEngine, group: GroupTask, shared: Any) -> list[EpisodeResult]:
        """Run the samples that the group's policy lets run (see group_run); what was cut is Failed."""
        run, began = GroupRun(group.n_samples, group.policy), perf_counter()
        running: dict[asyncio.Task[EpisodeResult], int] = {}
        results: dict[int, EpisodeResult] = {}
        actions = run.begin()
        try:
            while actions or running:
                for action in actions:
                    match action:
                        case Start():
                            sample = EpisodeTask.of(group, action.index, self.gconfig, shared)
                            running[asyncio.create_task(self._episode(engine, sample, group.policy))] = action.index
                        case Cut():
                            results[action.index] = Failed(action.reason, action.detail)
                            await _cancelled([task for task, index in running.items() if index == action.index])
                running = {task: index for task, index in running.items() if index not in results}
                actions = []
                if not running:
                    break
                due = None if run.due is None else max(0.0, run.due - (perf_counter() - began))
                done, _ = await asyncio.wait(running, timeout=due, return_when=asyncio.FIRST_COMPLETED)
                now = perf_counter() - began
                for task in sorted(done, key=running.__getitem__):
                    index = running.pop(task)
                    results[index] = result = task.result()
                    good = isinstance(result, Episode) and result.reward is not None
                    actions += run.ended(index, good, now)
                if not done:
                    actions = run.looked(now)
        finally:
            await _cancelled(list(running))
        return [results[index] for index in sorted(results)]

    async def _episode(self, engine: InferenceEngine, task: EpisodeTask, policy: GroupPolicy) -> EpisodeResult:
        result: EpisodeResult = Failed(CUT)
        for _ in range(policy.max_retries + 1):
            try:
                async with asyncio.timeout(policy.episode_timeout_s):
                    trajectories = await self.run(engine, task)
                result = _checked(trajectories, task, type(self).__name__)
            except BaseException as error:  # the border of a foreign workflow: LAW 27
                if not is_foreign(error):
                    raise
                result = failure(error, policy)
            if isinstance(result, Episode):
                break
        return result


async def _cancelled(tasks: list[asyncio.Task[EpisodeResult]]) -> None:
    """Cancel and wait for the end: a cancelled generation is aborted in its engine."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def failure(error: BaseException, policy: GroupPolicy) -> Failed:
    """Attribute what an episode raised: timeout, engine or crash, with the innermost frames for people."""
    if isinstance(error, TimeoutError):
        return Failed("timeout", printable(str(error)) or f"the episode ran longer than {policy.episode_timeout_s:g} s")
    if isinstance(error, EngineError | WireError):
        return Failed("engine", printable(f"{type(error).__name__}: {error}"))
    return Failed("crash", brief_traceback(error))


def _checked(result: Trajectory | list[Trajectory], task: EpisodeTask, workflow: str) -> EpisodeResult:
    """What a workflow returned, as an episode; where it is wrong, Failed says how: no frame of ours would add to it."""
    try:
        return _episode_of(result, task, workflow)
    except DataError as error:
        return Failed("crash", printable(f"DataError: {error}"))


def _episode_of(result: Trajectory | list[Trajectory], task: EpisodeTask, workflow: str) -> EpisodeResult:
    trajectories = tuple(result) if isinstance(result, list | tuple) else (result,)
    if not trajectories:
        raise DataError(f"{workflow}.run returned no trajectory for sample {task.sample_id} of task {task.task_id}")
    for trajectory in trajectories:
        if not isinstance(trajectory, Trajectory):
            expected = "expected a Trajectory or a list of them"
            raise DataError(f"{workflow}.run returned {type(trajectory).__name__}, {expected}")
        if trajectory.check().sample_id != task.sample_id:
            raise DataError(f"a trajectory of sample {task.sample_id} says it is of sample {trajectory.sample_id}")
    if any(trajectory.stop == StopReason.ABORT for trajectory in trajectories):
        return Failed(CUT, "the generation was aborted")
    return Episode(trajectories=trajectories)
