"""A lease is one value: what names another than the current one, late, repeated or of an owner before, is an orphan.

An orphan changes nothing but its counter: no prompt is dropped for it, and the attempt that runs is heard.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.ledger import DropReason, State
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows
from astraflow.dataflow.simulation.clock import VirtualLoop
from astraflow.dataflow.simulation.clock import run as run_in_virtual_time
from astraflow.errors import PeerError

MakeSettings = Callable[..., DataflowSettings]

LEASE_S = 2.1
"""Of a run whose episodes may take 0.7 s."""


def play(settings: DataflowSettings, scenario: Callable[[Rehearsal], Awaitable[None]], **options: Any) -> None:
    async def body() -> None:
        async with Rehearsal(settings, clock=loop.time, **options).running() as rehearsal:
            await scenario(rehearsal)
            rehearsal.service.books.ledger.validate()

    loop = VirtualLoop()
    run_in_virtual_time(body(), loop)


def held(uid: str = "r", **options: Any) -> ScriptedRaaS:
    return ScriptedRaaS(uid, Rehearsal.TOKEN, lambda task, version: [1.0, 0.0], hold=True, **options)


def attempt(peer: ScriptedRaaS, number: int) -> list[str]:
    """Ids of the tasks of a number of attempt that run at a RaaS."""
    return [task_id for task_id in peer.running if task_id.endswith(f".{number}")]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():
            await asyncio.sleep(0.1)


def unheard(rehearsal: Rehearsal, orphans: int) -> None:
    """Only orphans came so far."""
    counters = rehearsal.service.books.ledger.counters
    assert dict(counters.dropped) == {}
    assert (counters.orphans, counters.states[State.READY]) == (orphans, 0)


def test_results_of_a_submit_whose_answer_was_lost(make_settings: MakeSettings) -> None:
    """The RaaS runs what nobody knows it has; the same groups are leased to it again."""

    async def scenario(rehearsal: Rehearsal) -> None:
        peer = held(max_concurrency=4)
        real, calls = peer.submit, 0

        async def submit(request: m.SubmitRequest) -> list[m.Accepted]:
            nonlocal calls
            calls += 1
            accepted = await real(request)
            if calls == 1:
                raise PeerError("the connection broke after the request was taken")
            return accepted

        peer.submit = submit  # type: ignore[method-assign]
        await rehearsal.trainer(4).begin()
        await rehearsal.join(peer)
        await until(lambda: bool(attempt(peer, 1)))
        await rehearsal.join(peer)  # its next heartbeat: healthy again
        await until(lambda: bool(attempt(peer, 2)))
        late = len(attempt(peer, 1))
        await peer.finish(attempt(peer, 1))
        await asyncio.sleep(1.0)
        unheard(rehearsal, orphans=late)
        running = len(attempt(peer, 2))
        await peer.finish(attempt(peer, 2))
        await until(lambda: rehearsal.service.books.ledger.counters.states[State.READY] == running)

    play(make_settings(), scenario)


def test_results_after_their_lease_expired(make_settings: MakeSettings) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        peer = held(max_concurrency=4)
        await rehearsal.trainer(4).begin()
        await rehearsal.join(peer)
        await until(lambda: bool(attempt(peer, 2)))
        late = len(attempt(peer, 1))
        await peer.finish(attempt(peer, 1))
        await asyncio.sleep(0.5)
        unheard(rehearsal, orphans=late)

    play(make_settings(episode_timeout_s=LEASE_S / 3), scenario)


def test_a_refusal_after_its_lease_expired_takes_no_later_lease_back(make_settings: MakeSettings) -> None:
    """A submit that hangs until its leases have expired concerns those leases, not the ones that followed."""

    async def scenario(rehearsal: Rehearsal) -> None:
        peer = held(max_concurrency=4)
        real, calls, hangs = peer.submit, 0, asyncio.Event()

        async def submit(request: m.SubmitRequest) -> list[m.Accepted]:
            nonlocal calls
            calls += 1
            if calls == 1:
                await hangs.wait()
                return [m.Accepted(task_id=task.task_id, accepted=False, reason="too late") for task in request.tasks]
            return await real(request)

        peer.submit = submit  # type: ignore[method-assign]
        await rehearsal.trainer(4).begin()
        await rehearsal.join(peer)
        counters = rehearsal.service.books.ledger.counters
        await until(lambda: counters.lost_leases > 0 and counters.states[State.LEASED] > 0)
        before = counters.lost_leases
        hangs.set()
        await asyncio.sleep(0.3)
        assert counters.lost_leases == before
        await until(lambda: bool(attempt(peer, 2)))
        await peer.finish(attempt(peer, 2))
        await until(lambda: counters.states[State.READY] > 0)
        assert (counters.lost_leases, counters.orphans) == (before, 0)

    play(make_settings(episode_timeout_s=LEASE_S / 3), scenario)


@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_late_and_repeated_results_drops_a_prompt(make_settings: MakeSettings, seed: int) -> None:
    """Two RaaS lose answers, let leases expire, and return everything that they ever had, again and again."""
    chance = random.Random(seed)

    async def scenario(rehearsal: Rehearsal) -> None:
        peers = [held(uid, max_concurrency=4) for uid in "ab"]
        for peer in peers:
            _forgetful(peer, chance)
            await rehearsal.join(peer)
        await rehearsal.trainer(4).begin()
        counters = rehearsal.service.books.ledger.counters
        for _ in range(60):
            peer = chance.choice(peers)
            waiting = list(peer.running)
            await peer.finish(chance.sample(waiting, chance.randint(0, len(waiting))))
            await asyncio.sleep(chance.random())
            if chance.random() < 0.3:
                await rehearsal.join(chance.choice(peers))
        assert dict(counters.dropped) == {}
        assert counters.orphans > 0
        assert counters.states[State.READY] > 0

    play(make_settings(episode_timeout_s=LEASE_S / 3), scenario)


def _forgetful(peer: ScriptedRaaS, chance: random.Random) -> None:
    """Some of its answers to a submit are lost, and it keeps returning what it has returned before."""
    submit, pull, returned = peer.submit, peer.pull, []

    async def lossy(request: m.SubmitRequest) -> list[m.Accepted]:
        accepted = await submit(request)
        if chance.random() < 0.2:
            raise PeerError("the answer is lost")
        return accepted

    async def repeating(request: m.PullRequest) -> list[m.PulledItem]:
        items = await pull(request)
        again = chance.sample(returned, min(len(returned), 2))
        returned.extend(items)
        return [*items, *again]

    peer.submit, peer.pull = lossy, repeating  # type: ignore[method-assign]


def test_a_result_that_names_another_lease_is_an_orphan(make_settings: MakeSettings) -> None:
    """Whatever else it looks like: the owner and the attempt count."""

    async def scenario(rehearsal: Rehearsal) -> None:
        peer = held(max_concurrency=4)
        pull = peer.pull

        async def wrong(request: m.PullRequest) -> list[m.PulledItem]:
            return [
                msgspec.structs.replace(item, task_id=f"{item.task_id}/{change}", lease=_changed(item.lease, change))
                for item in await pull(request)
                for change in ({"attempt": 0}, {"attempt": 2}, {"attempt": -1}, {"owner": "r#2"}, {"owner": ""})
            ]

        peer.pull = wrong  # type: ignore[method-assign]
        await rehearsal.trainer(4).begin()
        await rehearsal.join(peer)
        await until(lambda: bool(peer.running))
        ended = await peer.finish()
        await asyncio.sleep(0.5)
        unheard(rehearsal, orphans=5 * ended)

    play(make_settings(), scenario)


def _changed(lease: Any, change: dict[str, Any]) -> Any:
    return msgspec.structs.replace(lease, **change)


def test_a_late_result_of_an_evaluation_is_counted_and_scores_nothing(make_settings: MakeSettings) -> None:
    """Who let its lease expire answers after another has scored the task."""

    async def scenario(rehearsal: Rehearsal) -> None:
        slow, quick = held("slow", max_concurrency=8), ScriptedRaaS("q", Rehearsal.TOKEN, lambda task, version: [1.0])

        async def lost(request: m.CancelRequest) -> m.CancelResult:
            raise PeerError("it is not told that nobody waits")

        slow.cancel = lost  # type: ignore[method-assign]
        await rehearsal.join(slow)
        trainer = rehearsal.trainer(4)
        scoring = asyncio.create_task(trainer.begin(run_eval=True))
        await until(lambda: any(task_id.startswith("eval") for task_id in slow.running))
        await rehearsal.join(quick)
        results = (await scoring).eval_results
        assert results is not None
        late = [task_id for task_id in slow.running if task_id.startswith("eval")]
        second = asyncio.create_task(trainer.announce(run_eval=True))
        await slow.finish(late)
        await second
        assert results.datasets["held_out"].avg_at_k == 100.0
        counters = rehearsal.service.books.ledger.counters
        assert counters.dropped[DropReason.REJECTED] == 0

    settings = make_settings(
        n_samples=1,
        episode_timeout_s=LEASE_S / 3,
        eval={"timeout_s": 60.0},
        eval_workflows={"w": {"workflow_cls": "rlvr"}},
        eval_datasets={"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "w"}},
    )
    play(settings, scenario, eval_rows={"held_out": example_rows(3)})
