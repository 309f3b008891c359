"""What the base class of episodes guarantees."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest, StopReason, Trajectory, Turn, Value
from astraflow.core.data.trajectory import Episode, Failed, GroupResult
from astraflow.core.workflow.api.engine_api import ScriptedInference
from astraflow.core.workflow.api.workflow_api import EpisodeWorkflow, GroupPolicy, GroupTask
from astraflow.errors import EngineError, InvariantError


class Scripted(EpisodeWorkflow):
    """Samples two tokens, after doing whatever `acts` says for the sample's index and attempt."""

    def __init__(self, acts: Mapping[int, list[Any]] | None = None) -> None:
        super().__init__(GenerationHyperparameters(n_samples=3, max_new_tokens=2))
        self.acts = acts or {}
        self.prepared = 0

    def prepare(self, data):
        self.prepared += 1
        if data.get("broken"):
            raise KeyError("messages")
        return np.array([1], np.int32)

    async def run(self, engine, task):
        index = task.sample_id & 0xFFFF
        act = self.acts[index].pop(0) if self.acts.get(index) else None
        if isinstance(act, BaseException):
            raise act
        if act == "cancels its own task":
            own = asyncio.create_task(asyncio.sleep(60))
            own.cancel()
            await own
        if act == "hang":
            await asyncio.Event().wait()
        request = ModelRequest(rid=f"{task.sample_id}", input_ids=task.shared, gconfig=task.gconfig)
        response = await engine.agenerate(request)
        trajectory = Trajectory(
            task_id=task.task_id,
            group_id=task.group_id,
            sample_id=task.sample_id + (1 if act == "wrong sample" else 0),
            turns=(Turn.of(task.shared, response),),
            reward=1.0 if act == "float reward" else Value(1.0),  # type: ignore[arg-type]
            stop=StopReason.ABORT if act == "aborted" else response.stop_reason,
        )
        if act == "none":
            return None
        if act == "nothing":
            return []
        return [trajectory, trajectory] if act == "branches" else trajectory


def run(workflow: Scripted, policy: GroupPolicy | None = None, **data) -> GroupResult:
    group = GroupTask(task_id="t", group_id=1, data=data, n_samples=3, policy=policy or GroupPolicy())
    return asyncio.run(workflow.run_group(ScriptedInference(lambda request: [4, 5]), group))


def test_every_sample_is_run_and_the_group_prepared_once() -> None:
    workflow = Scripted()
    result = run(workflow)
    assert [type(episode) for episode in result.episodes] == [Episode] * 3
    assert workflow.prepared == 1
    assert result.timing["episodes_s"] > 0


@pytest.mark.parametrize(
    ("act", "reason", "detail"),
    [
        (KeyError("gone"), "crash", "KeyError: 'gone'"),
        (EngineError("full"), "engine", "EngineError: full"),
        (TimeoutError(), "timeout", "longer than"),
        ("wrong sample", "crash", "says it is of sample"),
        ("nothing", "crash", "Scripted.run returned no trajectory"),
        ("none", "crash", "Scripted.run returned NoneType, expected a Trajectory or a list"),
        ("cancels its own task", "crash", "CancelledError"),
        (SystemExit("bye"), "crash", "SystemExit: bye"),
        ("aborted", "cut", "aborted"),
    ],
)
def test_a_failed_episode_is_data_and_the_others_are_untouched(act: object, reason: str, detail: str) -> None:
    first, second, third = run(Scripted({1: [act]})).episodes
    assert isinstance(first, Episode)
    assert isinstance(third, Episode)
    assert isinstance(second, Failed)
    assert second.reason == reason
    assert detail in second.detail


def test_what_is_wrong_with_a_trajectory_is_said_without_frames() -> None:
    _, second, _ = run(Scripted({1: ["float reward"]})).episodes
    assert isinstance(second, Failed)
    where = "trajectory 65537 of task t"
    assert second.detail == f"DataError: {where}: reward is a float (1.0), expected Value(…) or Invalid(…)"


def test_an_episode_has_a_deadline() -> None:
    (episode, *_) = run(Scripted({0: ["hang"]}), GroupPolicy(episode_timeout_s=0.01)).episodes
    assert isinstance(episode, Failed)
    assert (episode.reason, episode.detail) == ("timeout", "the episode ran longer than 0.01 s")


def test_retries_are_bounded() -> None:
    acts = {0: [KeyError(1), KeyError(2)], 1: [KeyError(1), KeyError(2), KeyError(3)]}
    first, second, _ = run(Scripted(acts), GroupPolicy(max_retries=2)).episodes
    assert isinstance(first, Episode)
    assert isinstance(second, Failed)


def test_over_sampling_gives_the_first_that_end_well_and_says_who_was_cut() -> None:
    workflow = Scripted({0: ["hang"], 2: [KeyError("gone")]})
    result = run(workflow, GroupPolicy(over_sample=2))
    reasons = [episode.reason if isinstance(episode, Failed) else "good" for episode in result.episodes]
    assert reasons == ["cut", "good", "crash", "good", "good"]


def test_samples_that_end_together_are_n_all_the_same() -> None:
    result = run(Scripted(), GroupPolicy(over_sample=4))
    reasons = [episode.reason if isinstance(episode, Failed) else "good" for episode in result.episodes]
    assert sorted(reasons) == ["cut"] * 4 + ["good"] * 3


@pytest.mark.parametrize(("straggler", "reasons"), [("shrink", ["straggler"]), ("replace", ["straggler", "good"])])
def test_law_25_a_stuck_sample_is_cut_or_replaced_with_the_blame_recorded(straggler: str, reasons: list[str]) -> None:
    workflow = Scripted({1: ["hang"]})
    result = run(workflow, GroupPolicy(straggler=straggler, episode_timeout_s=60.0))  # type: ignore[arg-type]
    found = [episode.reason if isinstance(episode, Failed) else "good" for episode in result.episodes]
    assert found == ["good", reasons[0], "good", *reasons[1:]]
    stuck = result.episodes[1]
    assert isinstance(stuck, Failed)
    assert "2 others had ended after" in stuck.detail
    samples = [e.trajectories[0].sample_id for e in result.episodes if isinstance(e, Episode)]
    assert samples == [(1 << 16) | i for i in ([0, 2] if straggler == "shrink" else [0, 2, 3])]


def test_a_cancelled_group_leaves_no_sample_behind() -> None:
    async def body() -> None:
        group = GroupTask(task_id="t", group_id=1, data={}, n_samples=3)
        workflow = Scripted({0: ["hang"], 1: ["hang"]})
        running = asyncio.create_task(workflow.run_group(ScriptedInference(lambda request: [4, 5]), group))
        await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(body())


def test_branches_share_their_sample() -> None:
    (episode, *_) = run(Scripted({0: ["branches"]})).episodes
    assert isinstance(episode, Episode)
    assert len(episode.trajectories) == 2


def test_a_row_that_cannot_be_prepared_fails_its_samples_only() -> None:
    result = run(Scripted(), broken=True)
    assert [episode.reason for episode in result.episodes] == ["crash"] * 3
    assert "KeyError: 'messages'" in result.episodes[0].detail


def test_a_broken_invariant_is_not_data() -> None:
    with pytest.raises(InvariantError):
        run(Scripted({0: [InvariantError("bug")]}))


def test_the_public_contract_of_an_episode_workflow_leaves_failed_samples_out() -> None:
    async def body() -> None:
        engine = ScriptedInference(lambda request: [4, 5])
        arrays = await Scripted({1: [KeyError()]}).arun_episode(engine, {})
        assert arrays["input_ids"].tolist() == [[1, 4, 5]] * 2
        assert arrays["loss_mask"].tolist() == [[0, 1, 1]] * 2
        assert await Scripted({n: [KeyError()] for n in range(3)}).arun_episode(engine, {}) is None

    asyncio.run(body())
