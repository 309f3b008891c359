"""What the peers of a world see of Dataflow, whenever time passes: nobody starves, nothing stands still for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astraflow.dataflow.raas_pool import Health
from astraflow.dataflow.service import AstraFlow
from astraflow.dataflow.simulation.checks import PATIENCE_S, Patience
from astraflow.dataflow.simulation.disk import SLOW_COMMITS_S

if TYPE_CHECKING:
    from astraflow.dataflow.simulation.world import World

EVALUATED_S = 150.0
"""Longest that a round of a few rows may take, with services that come, go and are slow."""

UNUSED_S = 30.0
"""Longest that a RaaS which can be reached may be without a place in the pool."""

DEADLOCKED_S = 10.0
"""Longest that all may wait though no group runs: a service that is slow and lags pulls a version first."""

Still = dict[tuple[str, str], tuple[float, str]]
"""(kind, who) → (how long it may stand still, in words what is wrong)."""


class Sight:
    """Looks at a world; who stands still too long is a violation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._patience = Patience(world.wrong)
        self._looked = 0.0

    def look(self) -> None:
        """Called before time passes."""
        now = self._world.loop.time()
        service = self._world.service
        if now < self._looked + self._world.scenario.look_s or service is None or self._world.finished:
            return
        self._looked = now
        if service.error is not None:
            self._world.wrong("failed", f"the run stops: {service.error}")
            self._world.finished = True
            return
        service.books.ledger.validate()
        service.pool.validate()
        service.announcements.barrier.validate()
        service.attendance.validate()
        still: Still = {}
        if service.evaluation.running:
            still["evaluation", "a round"] = (EVALUATED_S, "does not come to its end")
        if not service.policies.unannounced(service.books.absent) and not service.evaluation.running:
            self._idle(service, still)
        self._waiting(service, still)
        self._deadlocked(service, still)
        self._unused(service, still)
        self._patience.look(now, still)

    @property
    def _patience_s(self) -> float:
        """How long something may stand still: what is promised is written down first, and commits may be slow."""
        return PATIENCE_S + 2 * max(SLOW_COMMITS_S) if self._world.was_slow else PATIENCE_S

    def _idle(self, service: AstraFlow, still: Still) -> None:
        """A RaaS has room and the bound lets a group start."""
        checks, steps = self._world.checks, {t.model_id: t.steps for t in self._world.trainers}
        for instance in service.pool.serving:
            raas = self._world.raas.get(instance.url)
            # of an early one it takes Dataflow a while to see what it serves
            if raas is None or raas.silent or raas.mute or raas.early or raas.taken >= raas.concurrency:
                continue
            room = [
                checks.credit(model_id, steps[model_id].get(state.number, -1))
                for model_id, state in raas.versions.items()
                if model_id not in checks.absent
            ]
            # one that was just started anew serves nothing, until it has registered the pool has its predecessor
            credit = min(room, default=0)
            if credit > 0:
                text = f"has room for {raas.concurrency - raas.taken} groups, and {credit} may start"
                # where leases are given out all the time, each look may find the moment before one
                still["starvation", f"{raas.uid}, {checks.leases} leases in all"] = (self._patience_s, text)

    def _waiting(self, service: AstraFlow, still: Still) -> None:
        """A trainer waits though its batch is there; a group ends at no time."""
        for trainer in self._world.trainers:
            if trainer.waiting_since is not None and self._world.checks.fills(trainer.model_id, trainer.replayable()):
                still["starvation", trainer.model_id] = (self._patience_s, "waits for a batch whose groups are ready")
        phantoms = service.announcements.barrier.awaited() - set(self._world.scenario.models)
        if phantoms:
            still["barrier", ", ".join(sorted(phantoms))] = (PATIENCE_S, "is awaited, and is no model of this run")
        longest = self._world.scenario.episode_timeout_s + PATIENCE_S
        for raas in self._world.raas.values():
            late = [group for since, group, _ in raas.running.values() if self._world.loop.time() - since > longest]
            for group in late:
                still["blocked group", f"group {group}"] = (0.0, f"one sample blocks it at {raas.uid}")

    def _deadlocked(self, service: AstraFlow, still: Still) -> None:
        """All trainers that are there wait, and no group runs that could help them."""
        there = [trainer for trainer in self._world.trainers if trainer.model_id not in self._world.checks.absent]
        if self._world.checks.running or service.evaluation.running or not service.pool.serving:
            return
        if there and all(trainer.asking for trainer in there):
            still["deadlock", ", ".join(t.model_id for t in there)] = (DEADLOCKED_S, "all wait, and no group runs")

    def _unused(self, service: AstraFlow, still: Still) -> None:
        """A RaaS that can be reached has no place in the pool."""
        serving = {instance.uid for instance in service.pool.live if instance.health is not Health.SUSPECT}
        for raas in self._world.raas.values():
            if not (raas.dead or raas.silent or raas.leaving) and raas.uid not in serving:
                still["unused", raas.uid] = (UNUSED_S, "can be reached and is not used")
