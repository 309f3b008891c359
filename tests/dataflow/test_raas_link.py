"""The loops around one RaaS: set-up, death, refusal, and what becomes of the work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from astraflow.core.protocol import messages as m
from astraflow.dataflow import raas_link
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS
from astraflow.errors import CallerError


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raas_link, "RETRY_S", 0.001)


MakeSettings = Callable[..., DataflowSettings]


def half(task: m.Task, version: int) -> list[float]:
    return [1.0, 0.0]


def raas(uid: str, **options: Any) -> ScriptedRaaS:
    return ScriptedRaaS(uid, Rehearsal.TOKEN, half, **options)


def run(settings: DataflowSettings, test: Callable[[Rehearsal], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        async with Rehearsal(settings, **options).running() as rehearsal:
            await test(rehearsal)
            rehearsal.service.books.ledger.validate()
            rehearsal.service.pool.validate()

    asyncio.run(asyncio.wait_for(body(), 60))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loops run until a condition holds (the test's own time limit ends it otherwise)."""
    while not condition():
        await asyncio.sleep(0)


def test_a_raas_is_set_up_before_it_gets_work(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("r", hold=True)
        await rehearsal.join(peer)
        await until(lambda: "default" in peer.workflows)
        assert peer.workflows["default"].group_policy == {
            "episode_timeout_s": 120.0,
            "wait": {"mean_s": 0.5, "sigma": 1.0},
        }
        assert peer.submitted == []
        await rehearsal.trainer(4).begin()
        await until(lambda: len(peer.running) == 6)  # (η + 1) B
        assert {version for _, _, version in peer.submitted} == {0}

    run(make_settings(buffer={"rollout_wait": {"mean_s": 0.5}}), test)


def test_the_work_of_a_dead_raas_goes_to_another_at_once(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        first, second = raas("first", hold=True), raas("second")
        await rehearsal.join(first)
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await until(lambda: len(first.running) == 6)
        lost = {group_id for _, group_id, _ in first.submitted}
        await first.die()
        await rehearsal.join(second)
        batch = (await trainer.batch()).batch
        assert set(batch.group_id.tolist()) <= lost
        assert {group_id for _, group_id, _ in second.submitted[:6]} == lost
        assert rehearsal.service.books.ledger.counters.lost_leases == 6

    run(make_settings(), test)


def test_late_results_of_a_lost_lease_are_ignored(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("r", hold=True)
        await rehearsal.join(peer, incarnation="1")
        await rehearsal.trainer(4).begin()
        await until(lambda: len(peer.running) == 6)
        # the same process registers as if started anew: its work is leased again, to itself
        await rehearsal.join(peer, incarnation="2")
        counters = rehearsal.service.books.ledger.counters
        await until(lambda: counters.lost_leases == 6)
        await peer.finish()
        await until(lambda: len(peer.submitted) == 12)
        await peer.finish()
        await until(lambda: rehearsal.service.serving.ready("model0") == 6)
        assert counters.issued == 6

    run(make_settings(), test)


def test_one_that_cannot_prove_its_version_gets_no_work(
    make_settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        liar, honest = raas("liar"), raas("honest")
        liar.digest = "another"
        await rehearsal.join(liar)
        await rehearsal.join(honest)
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await trainer.train()
        assert liar.submitted == []
        assert honest.submitted
        rows = (await rehearsal.client.raas_pool())["instances"]
        assert [(row["uid"], row["verified"]) for row in rows] == [("liar", False), ("honest", True)]

    run(make_settings(), test)
    assert "ALARM: RaaS liar#1 serves version 0 of model0 with digest another" in caplog.text


def test_a_raas_that_lags_beyond_the_bound_gets_no_work(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        slow, quick = raas("slow"), raas("quick")
        await rehearsal.join(slow)
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await trainer.batch()
        slow.refuse_pulls = True
        await rehearsal.join(quick)
        for _ in range(5):
            stats = (await trainer.train()).buffer_stats
            assert stats["buffer/staleness_max"] <= 1
        assert stats["dropped/stale"] == 0
        await until(lambda: quick.version == trainer.version)
        before = len(slow.submitted)
        await trainer.train()
        assert len(slow.submitted) == before

    run(make_settings(buffer={"max_staleness": 1}), test)


def test_a_raas_that_cannot_reach_the_sender_is_asked_again_and_not_blamed(
    make_settings: MakeSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("r")
        pull, away = peer.notify_version, 5

        async def reach(request: m.RaaSNotifyVersionRequest) -> m.RaaSNotifyVersionResult:
            nonlocal away
            if away:
                away -= 1
                reason = "the sender at h:1 cannot be reached"
                return m.RaaSNotifyVersionResult(
                    ok=False, model_id=request.model_id, version=-1, pulled=False, reason=reason
                )
            return await pull(request)

        peer.notify_version = reach  # type: ignore[method-assign]
        await rehearsal.join(peer)
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        assert len((await trainer.batch()).batch.lengths) == 4
        instance = rehearsal.service.pool.get("r#1")
        assert instance is not None
        assert (away, instance.failure_count) == (0, 0)

    run(make_settings(), test)
    assert "RaaS r#1 has not pulled version 0: the sender at h:1 cannot be reached" in caplog.text
    assert "is dead" not in caplog.text


def test_draining_ends_its_work_and_leaves(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        leaving, staying = raas("leaving", hold=True), raas("staying", hold=True)
        await rehearsal.join(leaving)
        await rehearsal.trainer(4).begin()
        await until(lambda: len(leaving.running) == 6)
        await rehearsal.join(staying)
        reply = await rehearsal.client.deregister_raas("leaving")
        assert reply.pool_size == 2
        await leaving.finish()
        await until(lambda: len(rehearsal.service.pool.all) == 1)
        assert rehearsal.service.serving.ready("model0") == 6
        assert rehearsal.service.books.ledger.counters.lost_leases == 0
        assert (await rehearsal.client.deregister_raas("nobody")).pool_size == 1

    run(make_settings(), test)


def test_leaving_without_draining_requeues_at_once(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        leaving, staying = raas("leaving", hold=True), raas("staying", hold=True)
        await rehearsal.join(leaving)
        await rehearsal.trainer(4).begin()
        await until(lambda: len(leaving.running) == 6)
        await rehearsal.join(staying)
        assert (await rehearsal.client.deregister_raas("leaving", drain=False)).pool_size == 1
        await until(lambda: len(staying.running) == 6)
        assert [g for _, g, _ in staying.submitted] == sorted(g for _, g, _ in leaving.submitted)

    run(make_settings(), test)


def test_a_process_that_was_started_anew_and_does_not_say_so_is_found_out(make_settings: MakeSettings) -> None:
    """At the same address and without an incarnation: its first answer after a failed call serves no version."""

    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("r", hold=True)
        await rehearsal.join(peer)
        await rehearsal.trainer(4).begin()
        await until(lambda: len(peer.running) == 6)
        held = [group_id for _, group_id, _ in peer.submitted]
        await peer.die()
        await until(lambda: rehearsal.service.pool.doubted("r#1"))
        peer.restart()
        assert (await rehearsal.join(peer)).pool_size == 1  # its heartbeat
        await until(lambda: rehearsal.service.pool.live == [])
        assert "serves no version of model0 any more" in rehearsal.service.raas_pool()["instances"][0]["reason"]
        await rehearsal.join(peer)  # its next heartbeat
        await until(lambda: len(peer.running) == 6)
        assert [group_id for _, group_id, _ in peer.submitted] == held + held
        assert peer.workflows

    run(make_settings(), test)


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("capabilities", [{}, {"incarnation": "1"}])
def test_who_was_told_to_leave_is_not_brought_back_by_its_heartbeats(
    make_settings: MakeSettings, drain: bool, capabilities: dict[str, str]
) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        leaving, staying = raas("leaving", hold=True), raas("staying", hold=True)
        await rehearsal.join(leaving, **capabilities)
        await rehearsal.join(staying)
        await rehearsal.trainer(4).begin()
        await until(lambda: bool(leaving.running))
        await rehearsal.client.deregister_raas("leaving", drain=drain)
        assert bool((await rehearsal.join(leaving, **capabilities)).reason) != drain  # it drains: heard as before
        await leaving.finish()
        await until(lambda: [i.uid for i in rehearsal.service.pool.all] == ["staying"])
        for _ in range(3):
            assert "it was deregistered" in (await rehearsal.join(leaving, **capabilities)).reason
        assert [i.uid for i in rehearsal.service.pool.all] == ["staying"]
        # another process of that name
        assert (await rehearsal.join(leaving, incarnation="2")).reason == ""
        # a late goodbye of the first one says nothing of it
        await rehearsal.client.deregister_raas("leaving", drain=False, incarnation="1")
        assert (await rehearsal.join(leaving, incarnation="2")).pool_size == 2

    run(make_settings(), test)


def test_a_run_whose_workflow_no_raas_knows_is_over(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("r")

        async def unknown(request: m.RegisterWorkflowRequest) -> m.RegisterWorkflowResult:
            raise CallerError("unknown workflow 'rlvrr', did you mean 'rlvr'?")

        peer.register_workflow = unknown  # type: ignore[method-assign]
        await rehearsal.join(peer)
        await rehearsal.service.stopping.wait()
        assert "no RaaS can run this run's workflows" in str(rehearsal.service.error)
        assert "did you mean 'rlvr'" in str(rehearsal.service.error)

    run(make_settings(), test)


@pytest.mark.parametrize("what", ["episode", "reply"])
def test_a_run_whose_every_result_is_unreadable_is_over(make_settings: MakeSettings, what: str) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("r")
        pull = peer.pull

        async def broken(request: m.PullRequest) -> Any:
            items = await pull(request)
            if what == "reply":
                return [{"tasks": len(items)}]
            bad = {"type": "episode", "trajectories": [{"reward": 1.0}]}
            result = {"group_id": 0, "episodes": [bad, bad]}
            return [{"task_id": i.task_id, "lease": i.lease, "result": result} for i in items]

        peer.pull = broken  # type: ignore[method-assign]
        await rehearsal.join(peer)
        await rehearsal.trainer(4).begin()
        await rehearsal.service.stopping.wait()
        assert "http://r" in str(rehearsal.service.error)
        words = {"episode": "not a valid Episode or Failed: Expected `object`", "reply": "missing required field"}
        assert words[what] in str(rehearsal.service.error)

    run(make_settings(max_failure_streak=20), test)


def test_a_result_that_breaks_the_records_rules_counts_as_failed(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [float("nan"), 1.0]))
        await rehearsal.trainer(4).begin()
        await rehearsal.service.stopping.wait()
        assert "20 samples in a row had no reward" in str(rehearsal.service.error)
        assert "reward is nan" in str(rehearsal.service.error)

    run(make_settings(max_failure_streak=20), test)


def test_refused_tasks_return_to_the_queue(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        peer = raas("r")
        submit, refusals = peer.submit, 1

        async def reluctant(request: m.SubmitRequest) -> list[m.Accepted]:
            nonlocal refusals
            if refusals:
                refusals -= 1
                await peer.finish([])
                return [m.Accepted(task_id=t.task_id, accepted=False, reason="full") for t in request.tasks]
            return await submit(request)

        peer.submit = reluctant  # type: ignore[method-assign]
        await rehearsal.join(peer)
        trainer = rehearsal.trainer(4)
        await trainer.begin()
        await until(lambda: refusals == 0)
        await until(lambda: rehearsal.service.books.ledger.counters.lost_leases == 6)
        await rehearsal.join(peer)  # its heartbeat is the sign of life
        assert len((await trainer.batch()).batch.lengths) == 4

    run(make_settings(), test)


def test_a_bug_in_a_loop_stops_the_service(make_settings: MakeSettings) -> None:
    async def test(rehearsal: Rehearsal) -> None:
        def broken(key: str, items: list[m.PulledItem]) -> list[str]:
            raise ZeroDivisionError("a bug")

        rehearsal.service.acquisition.results = broken  # type: ignore[method-assign]
        await rehearsal.join(raas("r"))
        await rehearsal.trainer(4).begin()
        await rehearsal.service.stopping.wait()
        assert "a bug" in str(rehearsal.service.error)

    run(make_settings(), test)
