"""What befalls a world: each mishap happens to it beside all else, and takes its time.

programs     die, are slow to come back, come and go
not dead     cannot be reached for a while; accept work and return nothing; return it when nobody waits for it any
             more; serve what is not announced; share a name with another that lives
messages     connections break: the request or the reply is lost, the handler is still at work, or begins only later
disks        commits are slow; an older ledger, or an older state of a trainer, is put back
clocks       of a Dataflow that is started again begin at any time
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from astraflow.core.protocol import messages as m
from astraflow.dataflow.simulation.raas import SimulatedRaaS
from astraflow.dataflow.simulation.trainer import SimulatedTrainer
from astraflow.errors import CallerError, ConflictError, DeadlineError, PeerError

if TYPE_CHECKING:
    from astraflow.dataflow.simulation.world import World

AWAY_S = 3.0
"""How long a dead program is away before its successor starts."""

SILENT_S = 25.0
"""Longer than the pool waits for a sign of life: it is given up, and comes back."""

MUTE_S = 40.0
"""Longer than a lease: what it took goes to others while it goes on to accept more."""

LATE_S = 27.0
"""A little longer than a lease: it then returns what has gone to others, or to itself, once more."""

EARLY_S = 20.0
"""How long it serves versions before they are announced: several steps."""

TWINS_S = 30.0
"""How long two RaaS of one name live beside each other: many heartbeats."""

BREAKING_S = 4.0
"""How long connections break, now and then."""

SLOW_DISK_S = 8.0
"""How long each commit takes its time."""

BACKUP_S = 5.0
"""How old a ledger is that is put back, or so old that a trainer has kept a newer state."""


async def kill_raas(world: World) -> None:
    """One dies; its successor joins later."""
    raas = _any_raas(world)
    if raas is not None:
        world.end(raas)
        await asyncio.sleep(AWAY_S)
        if not world.finished:
            world.join(raas.uid)


async def silence_raas(world: World) -> None:
    """One cannot be reached for a while, and goes on working."""
    raas = _any_raas(world)
    if raas is not None:
        raas.silent = True
        await asyncio.sleep(SILENT_S)
        raas.silent = False


async def mute_raas(world: World) -> None:
    """One accepts what it is given and returns nothing, until it is started again."""
    raas = _any_raas(world)
    if raas is not None:
        raas.mute = True
        await asyncio.sleep(MUTE_S)
        if not (raas.dead or world.finished):
            world.end(raas)
            world.join(raas.uid)


async def late_raas(world: World) -> None:
    """One works, and returns nothing until the leases of what it has done are over."""
    raas = _any_raas(world)
    if raas is not None:
        raas.late = True
        await asyncio.sleep(LATE_S)
        raas.late = False


async def early_raas(world: World) -> None:
    """One pulls what senders have as soon as they have it, before it is announced."""
    raas = _any_raas(world)
    if raas is not None:
        raas.early = True
        for version in world.published.values():
            raas.serve(version)
        await asyncio.sleep(EARLY_S)
        raas.early = False


async def twin_raas(world: World) -> None:
    """Another is started by the name of one that lives; after a while one of the two dies."""
    raas = _any_raas(world)
    if raas is not None:
        twin = world.join(raas.uid)
        await asyncio.sleep(TWINS_S)
        goes = (twin, raas)[world.choices.pick(2)]
        if not (goes.dead or world.finished):
            world.end(goes)


async def join(world: World) -> None:
    """One more joins."""
    world.join(world.new_uid())


async def leave(world: World) -> None:
    """One drains, and leaves."""
    raas = _any_raas(world)
    if raas is None:
        return
    raas.leaving = True
    while not raas.dead and not world.finished:
        with suppress(PeerError, DeadlineError):
            await world.ask("deregister_raas", raas.farewell(), raas)
            break
        await asyncio.sleep(0.5)
    # it stays to finish what it has, then ends
    await world.until(lambda: not raas.running or raas.dead)
    await asyncio.sleep(2.0)
    if not raas.dead:
        world.end(raas)


async def kill_trainer(world: World) -> None:
    """One dies, and is restored from its last checkpoint."""
    trainer = _any_trainer(world)
    if world.cut(trainer):
        await asyncio.sleep(AWAY_S)
        if not world.finished:
            world.begin_trainer(trainer)


async def restore_trainer(world: World) -> None:
    """One dies, and somebody restores an older checkpoint than its last."""
    trainer = _any_trainer(world)
    if world.cut(trainer):
        trainer.restored_first = world.choices.pick(3)
        await asyncio.sleep(AWAY_S)
        if not world.finished:
            world.begin_trainer(trainer)


async def lose_trainer(world: World) -> None:
    """One dies for good, where it is not the last one: at once, or once it is restored and has announced nothing."""
    trainer = _any_trainer(world)
    others = [other for other in world.trainers if other is not trainer and not (other.lost or other.doomed)]
    if others and trainer.learnt.version and world.cut(trainer):
        if world.choices.pick(2):
            trainer.doomed = True
            world.begin_trainer(trainer)
            await world.until(lambda: trainer.lost or world.finished)
        trainer.lost = True
        if world.choices.pick(2):
            await _tell_without(world, trainer)


async def _tell_without(world: World, trainer: SimulatedTrainer) -> None:
    """The launcher says so of a trainer that it does not start again."""
    while not world.finished:
        with suppress(PeerError, DeadlineError):
            await world.ask("deregister_trainer", m.DeregisterTrainerRequest(model_id=trainer.model_id))
            return
        await asyncio.sleep(0.5)


async def crash_dataflow(world: World) -> None:
    """It is started again from what was committed, by another clock."""
    if await world.end_dataflow():
        await asyncio.sleep(AWAY_S)
        if not world.finished:
            world.start_dataflow(world.choices.pick(3))


async def restore_ledger(world: World) -> None:
    """The run is stopped, an older copy of its ledger is put back, and all is started again."""
    begun = all((trainer.model_id, 0) in world.checks.announced for trainer in world.trainers)
    if not begun or world.service is None or world.restoring:
        return
    world.restoring = True
    try:
        await _restore_ledger(world)
    finally:
        world.restoring = False


async def _restore_ledger(world: World) -> None:
    backup, kept = world.backup(), {trainer.model_id: trainer.kept for trainer in world.trainers}
    await asyncio.sleep(BACKUP_S)
    if world.choices.pick(2):
        newer = [trainer for trainer in world.trainers if not trainer.lost]
        await world.until(lambda: world.finished or any(t.kept > kept[t.model_id] for t in newer))
    there = all(world.lives(trainer) and not (trainer.lost or trainer.doomed) for trainer in world.trainers)
    if world.finished or not there or not await world.end_dataflow():
        return
    for trainer in world.trainers:
        world.cut(trainer)
        trainer.forget()
    gone = [raas for raas in world.raas.values() if not raas.leaving]
    for raas in gone:
        world.end(raas)
    world.restore(backup)
    await asyncio.sleep(AWAY_S)
    if world.finished:
        return
    world.start_dataflow()
    for uid in dict.fromkeys(raas.uid for raas in gone):
        world.join(uid)
    for trainer in world.trainers:
        world.begin_trainer(trainer)


async def slow_disk(world: World) -> None:
    """Commits take their time."""
    world.slow_disk = world.was_slow = True
    await asyncio.sleep(SLOW_DISK_S)
    world.slow_disk = False


async def break_connections(world: World) -> None:
    """Half of all calls end without an answer, though what they asked for may happen, now or later."""
    world.network.breaking = True
    await asyncio.sleep(BREAKING_S)
    world.network.breaking = False


async def bad_request(world: World) -> None:
    """Somebody asks for what must be refused, and change nothing."""
    requests: list[tuple[str, Any]] = [
        ("ready", m.ReadyRequest(train_batch_size=4, sender_endpoint="h:1", model_id="phantom", recovered_step=0)),
        ("ready", m.ReadyRequest(train_batch_size=1, sender_endpoint="h:1", model_id="model0", recovered_step=-1)),
        ("notify_version", m.NotifyVersionRequest(version=10**6, step=10**6, model_id="model0")),
        ("batch", m.BatchRequest(model_id="phantom", version=0, timeout=1.0)),
        ("register_raas", m.RegisterRaaSRequest(uid="", raas_url="")),
        ("deregister_trainer", m.DeregisterTrainerRequest(model_id="phantom")),
    ]
    method, request = requests[world.choices.pick(len(requests))]
    try:
        await world.ask(method, request)
    except (CallerError, ConflictError, PeerError, DeadlineError):
        return
    world.wrong("refused", f"{method} accepts {request}")


def _any_raas(world: World) -> SimulatedRaaS | None:
    live = [raas for raas in world.raas.values() if raas.well]
    # one is always left: whoever has no peer at all may wait
    return live[world.choices.pick(len(live))] if len(live) > 1 else None


def _any_trainer(world: World) -> SimulatedTrainer:
    return world.trainers[world.choices.pick(len(world.trainers)) if len(world.trainers) > 1 else 0]


Mishap = Callable[["World"], Coroutine[Any, Any, None]]
MISHAPS: dict[str, Mishap] = {
    mishap.__name__: mishap
    for mishap in (
        kill_raas, silence_raas, mute_raas, late_raas, early_raas, twin_raas, join, leave, kill_trainer,
        restore_trainer, lose_trainer, crash_dataflow, restore_ledger, slow_disk, break_connections, bad_request,
    )
}  # fmt: skip
STARTS_DATAFLOW = (crash_dataflow.__name__, restore_ledger.__name__)
"""They end with the world: it stops the service that is there."""
