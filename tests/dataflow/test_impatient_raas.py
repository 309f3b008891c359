"""RaaS that answer a poll at once, with nothing or with what they have returned before."""

import asyncio
from collections.abc import Awaitable, Callable

from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS
from astraflow.dataflow.simulation.clock import VirtualLoop
from astraflow.dataflow.simulation.clock import run as run_in_virtual_time

MakeSettings = Callable[..., DataflowSettings]


def play(settings: DataflowSettings, scenario: Callable[[Rehearsal], Awaitable[None]]) -> None:
    async def body() -> None:
        async with Rehearsal(settings, clock=loop.time).running() as rehearsal:
            await scenario(rehearsal)

    loop = VirtualLoop()
    run_in_virtual_time(body(), loop)


def test_who_ignores_the_polls_timeout_is_not_asked_all_the_time(make_settings: MakeSettings) -> None:
    polls = 0

    async def scenario(rehearsal: Rehearsal) -> None:
        peer = ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0], hold=True)

        async def nothing(request: m.PullRequest) -> list[m.PulledItem]:
            nonlocal polls
            polls += 1
            return []

        peer.pull = nothing  # type: ignore[method-assign]
        await rehearsal.join(peer)
        await rehearsal.trainer(4).begin()
        await asyncio.sleep(20.0)

    play(make_settings(), scenario)
    assert 90 <= polls <= 101


def test_a_result_that_comes_again_and_again_is_counted_once(make_settings: MakeSettings) -> None:
    async def scenario(rehearsal: Rehearsal) -> None:
        peer = ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0])
        pull, first = peer.pull, []

        async def again(request: m.PullRequest) -> list[m.PulledItem]:
            first.extend(await pull(request) if not first else [])
            return first[:1]

        peer.pull = again  # type: ignore[method-assign]
        await rehearsal.join(peer)
        await rehearsal.trainer(4).begin()
        await asyncio.sleep(20.0)
        assert rehearsal.service.books.ledger.counters.orphans == 1
        recorded = rehearsal.service.books.recorded
        await asyncio.sleep(20.0)
        assert rehearsal.service.books.recorded == recorded

    play(make_settings(), scenario)
