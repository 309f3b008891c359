"""A simulated trainer: it takes batches, takes its time, publishes versions, and dies.

Its model is the list of what it has learnt. A checkpoint keeps that list; who is restored goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astraflow.core.data import Manifest
from astraflow.core.protocol import messages as m
from astraflow.dataflow.scripted import manifest
from astraflow.dataflow.simulation.scenario import Scenario
from astraflow.errors import ConflictError, DeadlineError, PeerError

RETRY_S = 0.25
BATCH_S = 20.0
"""Longest that it waits for one answer to GET /batch."""

Ask = Callable[[str, Any], Awaitable[Any]]
"""(method of the service, request) → its answer; PeerError or DeadlineError where there is none."""


Publish = Callable[[Manifest], None]
"""A version can be pulled from now on."""


@dataclass
class Learnt:
    """What a trainer would lose without a checkpoint."""

    step: int = 0
    version: int = 0
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """step → what it trained."""

    def copy(self) -> Learnt:
        return Learnt(self.step, self.version, dict(self.groups))


class SimulatedTrainer:
    """One policy's trainer, over all its lives."""

    def __init__(
        self, model_id: str, scenario: Scenario, ask: Ask, publish: Publish, wrong: Callable[[str], None]
    ) -> None:
        """publish: what its sender does before a version is announced. wrong: told of what may not be."""
        self.model_id = model_id
        self.learnt = Learnt()
        self.steps: dict[int, int] = {}
        """version → the step that made it, of its lineage."""
        self.lost = False
        """It has died for good."""
        self.doomed = False
        """It is restored once more, and dies for good before it announces what it was restored to."""
        self.waiting_since: float | None = None
        """For a batch, in this call or the ones before it."""
        self.asking = False
        """It waits for an answer of Dataflow."""
        self.waited_s = 0.0
        self.ages: dict[int, int] = {}
        """Staleness → tokens trained at it."""
        self.episodes = 0
        """Samples that it trained on, repeats after a restoration included."""
        self._scenario = scenario
        self._ask = ask
        self._publish = publish
        self._wrong = wrong
        self._kept: list[Learnt] = []
        """Its checkpoints, the newest last."""
        self.restored_first = 0
        """How many of the newest checkpoints somebody passes over the next time."""
        self._lives = 0
        self._trained: set[int] = set()
        self._born: dict[int, int] = {}
        """Trained group → the step whose age decides whether it may train again."""

    @property
    def done(self) -> bool:
        return self.learnt.step >= self._scenario.steps

    @property
    def kept(self) -> int:
        """The step of its newest checkpoint; 0 for none."""
        return self._kept[-1].step if self._kept else 0

    async def run(self) -> None:
        """One life: from its checkpoint, or from nothing, to the last step."""
        self.waiting_since = None
        await self._begin()
        if self.doomed:
            self.lost = True
            return
        await self._announce()
        while not self.done:
            await self._train()
            if self.learnt.step % self._scenario.checkpoint_steps == 0 or self.done:
                await self._checkpoint()

    def forget(self) -> None:
        """All that is not in a checkpoint is gone."""
        self.learnt = Learnt()

    async def _begin(self) -> None:
        """Go on from the checkpoint that is offered, or where it is refused from the newest that is not."""
        states = [*self._kept[::-1], Learnt()]
        first = min(self.restored_first, len(states) - 1)
        self.restored_first = 0
        for state in (states[first], *states[:first], *states[first + 1 :]):
            try:
                return await self._restored(state.copy())
            except ConflictError as error:
                refusal = error
        raise refusal

    async def _restored(self, state: Learnt) -> None:
        self.learnt = state
        first = not self._lives
        self._lives += 1
        request = m.ReadyRequest(
            train_batch_size=self._scenario.batch_groups * self._scenario.n_samples,
            sender_endpoint="127.0.0.1:1",
            model_id=self.model_id,
            manifest=manifest(0, self.model_id) if first else None,
            recovered_version=state.version,
            recovered_step=None if first else state.step,
            incarnation=f"{self.model_id}-{self._lives}",
        )
        reply = await self._insist("ready", request)
        state.version = 0 if first else reply.next_version
        self._kept = [kept for kept in self._kept if kept.step <= state.step]
        self.steps = {version: step for version, step in self.steps.items() if step <= state.step}
        self._trained = {group_id for ids in state.groups.values() for group_id in ids}
        self._born = {group_id: step for group_id, step in self._born.items() if group_id in self._trained}

    async def _train(self) -> None:
        learnt = self.learnt
        self.waiting_since = _now()
        request = m.BatchRequest(model_id=self.model_id, version=learnt.version, timeout=BATCH_S)
        reply = await self._insist("batch", request)
        self.waited_s += _now() - self.waiting_since
        self.waiting_since = None
        self._check(reply.batch)
        await asyncio.sleep(self._scenario.step_s)
        learnt.step, learnt.version = learnt.step + 1, learnt.version + 1
        learnt.groups[learnt.step] = tuple(
            g for g in np.unique(reply.batch.group_id).tolist() if g not in self._trained
        )
        self._trained.update(learnt.groups[learnt.step])
        await self._announce()

    async def _announce(self) -> None:
        learnt = self.learnt
        self.steps[learnt.version] = learnt.step
        every = self._scenario.eval_steps
        published = manifest(learnt.version, self.model_id)
        self._publish(published)
        request = m.NotifyVersionRequest(
            version=learnt.version,
            step=learnt.step,
            model_id=self.model_id,
            manifest=published,
            last=learnt.step == self._scenario.steps,
            run_eval=bool(every) and learnt.step % every == 0,
        )
        reply = await self._insist("notify_version", request)
        if request.run_eval and reply.eval_results is None:
            self._wrong(f"{self.model_id}: an evaluation of version {learnt.version} gave no results")

    async def _checkpoint(self) -> None:
        learnt = self.learnt
        self._kept.append(learnt.copy())
        await self._insist("save_buffer", m.SaveBufferRequest(model_id=self.model_id, step=learnt.step))

    def _check(self, batch: Any) -> None:
        """Invariant 3, seen from the trainer: it knows which step made each version of its lineage."""
        sampled = batch.versions[batch.loss_mask.astype(bool)]
        for version, tokens in zip(*np.unique(sampled, return_counts=True), strict=True):
            made = self.steps.get(int(version))
            if made is None:
                self._wrong(f"{self.model_id}: a token of version {version}, which is not of its lineage")
                continue
            age = self.learnt.step - made
            self.ages[age] = self.ages.get(age, 0) + int(tokens)
            if age > self._scenario.max_staleness:
                self._wrong(f"{self.model_id}: a token is {age} steps old; the bound is {self._scenario.max_staleness}")
        self._check_size(batch)
        repeated = self._trained.intersection(batch.group_id.tolist())
        # replays are meant where they are configured, are a part of the batch, and have tokens within the bound
        if repeated and not (len(repeated) <= self._scenario.replays and repeated <= set(self.replayable())):
            self._wrong(f"{self.model_id}: groups {sorted(repeated)} are trained a second time")
        if self._scenario.replays:
            self._note_ages(batch)
        self.episodes += len(np.unique(batch.sample_id))

    def _check_size(self, batch: Any) -> None:
        """A batch is whole, and no larger than it must be."""
        scenario = self._scenario
        if scenario.count == "groups":
            found, most = len(np.unique(batch.group_id)), scenario.batch_groups
        else:
            found = len(np.unique(batch.sample_id))
            most = scenario.batch_places + scenario.group_places - 1
        if not scenario.batch_places <= found <= most:
            self._wrong(f"{self.model_id}: a batch of {found} {scenario.count}, expected {scenario.batch_places}")

    def replayable(self) -> list[int]:
        """What it has trained that is young enough to train again."""
        oldest = self.learnt.step - self._scenario.max_staleness
        return [g for ids in self.learnt.groups.values() for g in ids if self._born.get(g, -1) >= oldest]

    def _note_ages(self, batch: Any) -> None:
        decides = min if self._scenario.stale_policy == "drop" else max
        sampled, groups = batch.loss_mask.astype(bool), np.repeat(batch.group_id, batch.lengths)
        for group_id in np.unique(batch.group_id).tolist():
            versions = np.unique(batch.versions[sampled & (groups == group_id)]).tolist()
            self._born[group_id] = decides(self.steps.get(version, -1) for version in versions)

    async def _insist(self, method: str, request: Any) -> Any:
        self.asking = True
        try:
            while True:
                try:
                    return await self._ask(method, request)
                except (PeerError, DeadlineError):
                    await asyncio.sleep(RETRY_S)
        finally:
            self.asking = False


def _now() -> float:
    return asyncio.get_running_loop().time()
