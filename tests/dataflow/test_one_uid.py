"""Two live processes of one uid: the newer has it, and the older does not take it back while that one lives."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS
from astraflow.dataflow.simulation.clock import VirtualLoop
from astraflow.dataflow.simulation.clock import run as run_in_virtual_time

MakeSettings = Callable[..., DataflowSettings]
Processes = list[tuple[ScriptedRaaS, str]]

TWO = [
    (("http://m1", "1"), ("http://m2", "2")),
    (("http://m", "1"), ("http://m", "2")),
    (("http://m1", ""), ("http://m2", "")),
    (("http://m1", "1"), ("http://m2", "1")),
]
"""(url, incarnation) of two processes: other machines, one address that both give, none
that says its incarnation, and copies of one machine."""


def play(
    settings: DataflowSettings,
    two: tuple[tuple[str, str], tuple[str, str]],
    scenario: Callable[[Rehearsal, Processes], Awaitable[None]],
) -> None:
    async def body() -> None:
        async with Rehearsal(settings, clock=loop.time).running() as rehearsal:
            processes = []
            for url, incarnation in two:
                peer = ScriptedRaaS("gpu", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0], hold=True)
                peer.url = url
                processes.append((peer, incarnation))
            await scenario(rehearsal, processes)
            rehearsal.service.pool.validate()

    loop = VirtualLoop()
    run_in_virtual_time(body(), loop)


async def beats(rehearsal: Rehearsal, processes: Processes, rounds: int) -> list[m.RegisterRaaSReply]:
    """Let all give their signs of life in turn, and end what they had; returns the last replies."""
    replies = []
    for _ in range(rounds):
        replies = []
        for peer, incarnation in processes:
            await asyncio.sleep(2.5)
            replies.append(await rehearsal.join(peer, incarnation=incarnation))
            await peer.finish()
    return replies


@pytest.mark.parametrize("two", TWO)
def test_two_live_processes_of_one_uid_do_not_evict_each_other_for_ever(
    make_settings: MakeSettings, two: tuple[tuple[str, str], tuple[str, str]]
) -> None:
    async def scenario(rehearsal: Rehearsal, processes: Processes) -> None:
        await rehearsal.trainer(4).begin()
        replies = await beats(rehearsal, processes, 2)
        leases = rehearsal.service.books.ledger.counters
        lost = leases.lost_leases
        keys = [i.key for i in rehearsal.service.pool.all]
        replies = await beats(rehearsal, processes, 20)
        assert [i.key for i in rehearsal.service.pool.all] == keys
        assert leases.lost_leases == lost
        assert replies[1].reason == ""
        assert replies[0].reason == f"uid 'gpu' is that of a RaaS at {two[1][0]}: each needs a uid of its own"

    play(make_settings(), two, scenario)


@pytest.mark.parametrize("two", TWO)
def test_the_older_comes_back_once_the_newer_is_dead_and_then_keeps_the_uid(
    make_settings: MakeSettings, two: tuple[tuple[str, str], tuple[str, str]]
) -> None:
    async def scenario(rehearsal: Rehearsal, processes: Processes) -> None:
        await beats(rehearsal, processes, 3)
        older, newer = processes
        await newer[0].die()
        if newer[0].url == older[0].url:
            rehearsal.raas[older[0].url] = older[0]
        while all(i.health != "dead" for i in rehearsal.service.pool.all):
            await asyncio.sleep(1.0)
        assert (await rehearsal.join(older[0], incarnation=older[1])).reason == ""
        newer[0].dead = False
        first, second = await beats(rehearsal, processes, 5)
        assert (first.reason, second.reason[:9]) == ("", "uid 'gpu'")

    play(make_settings(), two, scenario)


def test_a_process_that_moves_is_let_in_at_once(make_settings: MakeSettings) -> None:
    async def scenario(rehearsal: Rehearsal, processes: Processes) -> None:
        (before, incarnation), (after, _) = processes
        await rehearsal.join(before, incarnation=incarnation)
        assert (await rehearsal.join(after, incarnation=incarnation)).reason == ""
        assert [i.url for i in rehearsal.service.pool.all] == ["http://m2"]

    play(make_settings(), (("http://m1", "1"), ("http://m2", "1")), scenario)
