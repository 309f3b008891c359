"""Tasks in, groups out, over the wire."""

import asyncio

import pytest

from astraflow.core.data import GenerationHyperparameters, ModelRequest, Value
from astraflow.core.data.trajectory import Episode, Failed, GroupResult
from astraflow.core.protocol import messages as m
from astraflow.core.workflow.api.workflow_api import EpisodeWorkflow, RolloutWorkflow
from astraflow.core.workflow.registry import register_workflow
from astraflow.errors import CallerError, ConflictError, InvariantError


@register_workflow("test_raises")
class Raises(RolloutWorkflow):
    """A workflow that is broken in the way it is asked to be."""

    def __init__(self, gconfig: GenerationHyperparameters, how: str = "crash") -> None:
        self.how = how

    async def arun_episode(self, engine, data):
        if self.how == "reject":
            return
        if self.how == "invariant":
            raise InvariantError("a bug of ours")
        raise KeyError("first")

    async def run_group(self, engine, group):
        if self.how == "group":
            raise KeyError("group")
        if self.how == "cancelled":
            raise asyncio.CancelledError("of its own task")
        if self.how == "exit":
            raise SystemExit("of a command-line tool")
        if self.how == "dict":
            return {"rewards": [1.0]}
        if self.how == "timing":
            return GroupResult(group_id=group.group_id, episodes=(), timing={"s": "slow"})  # type: ignore[dict-item]
        return await super().run_group(engine, group)


@register_workflow("test_hangs")
class Hangs(EpisodeWorkflow):
    """Every episode waits for ever."""

    async def run(self, engine, task):
        await asyncio.Event().wait()


def ready(raas, body, **options) -> None:
    async def with_version(h) -> None:
        await h.publish(0)
        await h.register()
        await body(h)

    raas(with_version, **options)


def test_a_task_becomes_a_group_of_checked_records(raas) -> None:
    async def body(h) -> None:
        await h.submit("t7")
        (item,) = await h.results()
        assert item.task_id == "t7"
        assert item.result is not None
        assert item.result.group_id == 7
        assert len(item.result.episodes) == 2
        for index, episode in enumerate(item.result.episodes):
            assert isinstance(episode, Episode)
            (trajectory,) = episode.trajectories
            assert trajectory.sample_id == (7 << 16) | index
            assert trajectory.model_id == "model0"
            assert trajectory.reward == Value(1.0)
            assert trajectory.stop == "stop"
            assert set(trajectory.arrays.versions[trajectory.arrays.mask == 1].tolist()) == {0}

    ready(raas, body)


def test_a_result_is_kept_until_it_is_acknowledged(raas) -> None:
    async def body(h) -> None:
        await h.submit("t1")
        await h.results()
        assert [item.task_id for item in await h.results()] == ["t1"]
        assert await h.client.pull(m.PullRequest(ack=["t1"])) == []

    ready(raas, body)


def test_nothing_runs_before_a_verified_version(raas) -> None:
    async def body(h) -> None:
        await h.register()
        await h.submit("t1")
        assert (await h.client.availability()).available == 0
        assert (await h.client.status()).status == "starting"
        assert h.service.table.running == 0
        await h.publish(0)
        assert len(await h.results()) == 1
        assert (await h.client.availability()).available == 4

    raas(body)


def test_at_most_max_concurrent_groups_run_and_the_rest_queues(raas) -> None:
    async def body(h) -> None:
        await h.register(workflow_id="default", workflow_cls="test_hangs", reward_fn=None)
        await h.submit("t1", "t2", "t3")
        answer = await h.client.availability()
        assert (answer.available, answer.inflight, answer.max_concurrency, answer.queued) == (0, 2, 2, 1)
        assert answer.engines == {"model0": h.engine.load()}
        cancelled = await h.client.cancel(["t1", "unknown"])
        assert cancelled.cancelled == ["t1"]
        assert (await h.client.availability()).inflight == 2, "the next one took its place"
        assert (await h.client.availability()).queued == 0

    ready(raas, body, max_concurrent=2)


def test_a_long_poll_answers_when_a_result_comes(raas) -> None:
    async def body(h) -> None:
        polling = asyncio.create_task(h.client.pull(m.PullRequest(timeout=60)))
        await asyncio.sleep(0)
        await h.submit("t1")
        async with asyncio.timeout(30):
            assert [item.task_id for item in await polling] == ["t1"]

    ready(raas, body)


def test_a_poll_without_results_ends_at_its_deadline(raas) -> None:
    async def body(h) -> None:
        assert await h.client.pull(m.PullRequest(timeout=0.01)) == []

    ready(raas, body)


def test_samples_and_greediness_can_be_set_per_task(raas) -> None:
    asked: list[GenerationHyperparameters] = []

    def script(request: ModelRequest) -> list[int]:
        asked.append(request.gconfig)
        return [20] * request.gconfig.max_new_tokens

    async def body(h) -> None:
        await h.submit("e1", lane="eval", greedy=True, n_samples=1)
        (item,) = await h.results(lane="eval")
        assert len(item.result.episodes) == 1
        await h.submit("t1")
        await h.results()
        assert [(g.greedy, g.n_samples) for g in asked] == [(True, 1), (False, 2), (False, 2)]

    ready(raas, body, script=script)


@pytest.mark.parametrize(
    ("how", "words"),
    [("crash", "KeyError"), ("group", "KeyError"), ("cancelled", "CancelledError"), ("exit", "SystemExit")],
)
def test_a_failing_workflow_is_data_and_the_service_goes_on(raas, how: str, words: str) -> None:
    async def body(h) -> None:
        await h.register(workflow_id="bad", workflow_cls="test_raises", reward_fn=None, workflow_kwargs={"how": how})
        bad = m.SubmitRequest(tasks=[m.Task(task_id="b1", group_id=1, data={})], workflow_id="bad")
        await h.client.submit(bad)
        (item,) = await h.results()
        assert len(item.result.episodes) == 2
        for episode in item.result.episodes:
            assert isinstance(episode, Failed)
            assert episode.reason == "crash"
            assert words in episode.detail
        await h.submit("t2")
        assert len(await h.results(2)) == 2

    ready(raas, body)


@pytest.mark.parametrize(
    ("how", "words"),
    [("dict", "test_raises.run_group returned dict, expected GroupResult"), ("timing", "Expected `float`, got `str`")],
)
def test_a_group_that_nobody_could_read_is_a_failed_one(raas, how: str, words: str) -> None:
    async def body(h) -> None:
        await h.register(workflow_cls="test_raises", reward_fn=None, workflow_kwargs={"how": how})
        await h.submit("t1")
        (item,) = await h.results()
        assert [episode.reason for episode in item.result.episodes] == ["crash", "crash"]
        assert words in item.result.episodes[0].detail

    ready(raas, body)


def test_a_rejected_occurrence_has_no_result(raas) -> None:
    async def body(h) -> None:
        await h.register(workflow_cls="test_raises", reward_fn=None, workflow_kwargs={"how": "reject"})
        await h.submit("t1")
        (item,) = await h.results()
        assert item.result is None

    ready(raas, body)


def test_a_broken_invariant_stops_the_program(raas) -> None:
    async def body(h) -> None:
        await h.register(workflow_cls="test_raises", reward_fn=None, workflow_kwargs={"how": "invariant"})
        await h.submit("t1")
        await asyncio.wait_for(h.service.stopping.wait(), 30)
        assert isinstance(h.service.broken, InvariantError)
        assert (await h.client.status()).status == "error"

    ready(raas, body)


def test_an_episode_that_overruns_is_failed_timeout(raas) -> None:
    async def body(h) -> None:
        policy = {"episode_timeout_s": 0.01}
        await h.register(workflow_cls="test_hangs", reward_fn=None, group_policy=policy)
        await h.submit("t1")
        (item,) = await h.results()
        assert {episode.reason for episode in item.result.episodes} == {"timeout"}

    ready(raas, body)


def test_the_artificial_wait_comes_after_the_groups_generation(raas) -> None:
    async def body(h) -> None:
        await h.register(group_policy={"wait": {"mean_s": 0.05, "sigma": 0.0}})
        await h.submit("t1")
        (item,) = await h.results()
        assert item.result.timing["group_s"] - item.result.timing["episodes_s"] >= 0.05

    ready(raas, body)


def test_after_a_reset_no_earlier_result_appears(raas) -> None:
    async def body(h) -> None:
        await h.submit("t1")
        await h.results()
        await h.register(workflow_cls="test_hangs", reward_fn=None)
        await h.submit("t2", "t3")
        reset = await h.service.reset(m.ResetRequest())
        assert reset == m.ResetResult(ready_for_eval=True, cancelled=3, stragglers=0, reset_epoch=1)
        assert await h.client.pull(m.PullRequest()) == []
        await h.register()
        await h.submit("t2")
        assert [item.task_id for item in await h.results()] == ["t2"]

    ready(raas, body)


def test_another_version_than_the_served_one_can_be_refused(raas) -> None:
    async def body(h) -> None:
        with pytest.raises(ConflictError, match="version 3 was asked for, 0 is served"):
            await h.client.submit(m.SubmitRequest(tasks=[], version=3))
        assert await h.client.submit(m.SubmitRequest(tasks=[], version=0)) == []

    ready(raas, body)


def test_an_unknown_workflow_is_the_callers_error(raas) -> None:
    async def body(h) -> None:
        with pytest.raises(CallerError, match="'other' is not registered; registered: default"):
            await h.client.submit(m.SubmitRequest(tasks=[], workflow_id="other"))

    ready(raas, body)


def test_paused_generation_goes_on_after_resume(raas) -> None:
    async def body(h) -> None:
        await h.client.pause(m.PauseRequest(mode="wait"))
        await h.submit("t1")
        assert h.service.table.queued == 1
        await h.client.resume("default")
        assert len(await h.results()) == 1

    ready(raas, body)


def test_status_counts_generated_tokens(raas) -> None:
    async def body(h) -> None:
        await h.submit("t1")
        await h.results()
        status = await h.client.status()
        assert status.load["tokens_generated"] == 6
        assert status.backend == "scripted"
        assert status.models == ["model0"]

    ready(raas, body)


def test_shutdown_asks_the_program_to_stop(raas) -> None:
    async def body(h) -> None:
        await h.client.shutdown()
        assert h.service.stopping.is_set()

    ready(raas, body)


def test_who_waits_for_a_result_is_answered_when_the_service_closes(raas) -> None:
    async def body(h) -> None:
        waiting = asyncio.create_task(h.client.pull(m.PullRequest(timeout=60)))
        while not h.service._finished._waiters:
            await asyncio.sleep(0)
        await h.service.close()
        assert await asyncio.wait_for(waiting, 30) == []

    raas(body)
