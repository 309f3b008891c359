"""A sender is ahead of its announcement by a moment: what was sampled by that version is early, not of another lineage.

It stays at its RaaS until the version is announced, and is never lost by having come too soon.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.ledger import State
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, ScriptedTrainer
from astraflow.dataflow.simulation.clock import VirtualLoop
from astraflow.dataflow.simulation.clock import run as run_in_virtual_time

MakeSettings = Callable[..., DataflowSettings]


def play(
    settings: DataflowSettings, scenario: Callable[[Rehearsal, ScriptedRaaS, ScriptedTrainer], Awaitable[None]]
) -> None:
    async def body() -> None:
        async with Rehearsal(settings, clock=loop.time).running() as rehearsal:
            peer = ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0], hold=True, max_concurrency=4)
            await rehearsal.join(peer)
            trainer = rehearsal.trainer(4)
            await trainer.begin()
            await asyncio.sleep(1.0)
            await scenario(rehearsal, peer, trainer)
            rehearsal.service.books.ledger.validate()

    loop = VirtualLoop()
    run_in_virtual_time(body(), loop)


async def trained_once(peer: ScriptedRaaS, trainer: ScriptedTrainer) -> None:
    """Train one step, of two of the four groups, and publish its weights; they are not announced."""
    await peer.finish(list(peer.running)[:2])
    await trainer.batch()
    trainer.version, trainer.step = 1, 1


@pytest.mark.parametrize("versions", [(0, 0, 1), (1, 1, 1)])
def test_results_of_a_version_that_is_announced_later_train(
    make_settings: MakeSettings, versions: Sequence[int]
) -> None:
    async def scenario(rehearsal: Rehearsal, peer: ScriptedRaaS, trainer: ScriptedTrainer) -> None:
        counters = rehearsal.service.books.ledger.counters
        await trained_once(peer, trainer)
        early = await peer.finish(versions=versions)
        await asyncio.sleep(5.0)
        assert dict(counters.dropped) == {}
        await trainer.announce()
        await asyncio.sleep(1.0)
        assert counters.states[State.READY] == early
        assert (counters.lost_leases, counters.orphans) == (0, 0)

    play(make_settings(), scenario)


def test_results_of_a_version_that_is_never_announced_run_again(make_settings: MakeSettings) -> None:
    """Its trainer died before it could, and the restored one announces another: the prompts are not lost with it."""

    async def scenario(rehearsal: Rehearsal, peer: ScriptedRaaS, trainer: ScriptedTrainer) -> None:
        counters = rehearsal.service.books.ledger.counters
        await trained_once(peer, trainer)
        early = await peer.finish(versions=(1, 1, 1))
        await asyncio.sleep(2.0)
        await trainer.recover(0)
        # the number of what RaaS have seen already is not given to other weights
        assert trainer.version == 2
        await asyncio.sleep(1.0)
        assert dict(counters.dropped) == {}
        assert counters.lost_leases == early
        assert len(peer.running) == 2 + early

    play(make_settings(), scenario)


def test_a_number_that_a_raas_serves_is_not_given_again(make_settings: MakeSettings) -> None:
    """It says so in its status, without any token: whoever has that number has other weights by it."""

    async def scenario(rehearsal: Rehearsal, peer: ScriptedRaaS, trainer: ScriptedTrainer) -> None:
        newcomer = ScriptedRaaS("n", Rehearsal.TOKEN, lambda task, version: [1.0, 0.0], hold=True)

        async def newest(request: m.RaaSNotifyVersionRequest) -> m.RaaSNotifyVersionResult:
            # its sender has nothing older any more
            newcomer._versions[request.model_id] = m.VersionState(number=5, digest="five", verified=True)
            return m.RaaSNotifyVersionResult(ok=True, model_id=request.model_id, version=5, pulled=True)

        newcomer.notify_version = newest  # type: ignore[method-assign]
        await rehearsal.join(newcomer)
        await asyncio.sleep(1.0)
        await trainer.ready_again(0, 0)
        assert trainer.version == 6

    play(make_settings(), scenario)


def test_results_that_stay_early_end_with_their_lease(make_settings: MakeSettings) -> None:
    """A RaaS that stamps what it likes holds up no prompt for longer than any other that does not answer."""

    async def scenario(rehearsal: Rehearsal, peer: ScriptedRaaS, trainer: ScriptedTrainer) -> None:
        counters = rehearsal.service.books.ledger.counters
        early = await peer.finish(versions=(7, 7, 7))
        await asyncio.sleep(1.0)
        assert counters.states[State.LEASED] == early
        await asyncio.sleep(4.0)
        assert counters.lost_leases >= early
        assert dict(counters.dropped) == {}

    play(make_settings(episode_timeout_s=1.0), scenario)
