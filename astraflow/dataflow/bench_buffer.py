"""What an episode costs Dataflow with so many others in its buffer: the part of `astraflow bench dataflow` in process.

Ledger, admission, ready buffer and batches are the real ones, without sockets and without a disk, so that the cost is
theirs alone. Groups come in and batches go out at the same rate; what waits in the buffer stays there.
"""

from __future__ import annotations

import asyncio
import time

from astraflow.core.data import Group, Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.books import Books
from astraflow.dataflow.data_serving import DataServing, ServingRules
from astraflow.dataflow.ledger import Curate, Finish, GroupKey, Issue, Lease, Ledger
from astraflow.dataflow.policies import Policies
from astraflow.dataflow.raas_pool import RaaSPool
from astraflow.dataflow.scripted import manifest, trajectory
from astraflow.dataflow.staleness import Admission
from astraflow.dataflow.trajectory_log import TrajectoryLog
from astraflow.dataflow.waiting import Waits

MODEL = "model0"
SAMPLES = 8
GROUPS = 32
"""Of a batch."""
TOKENS = 16
"""Of an episode: few, since what an episode weighs does not depend on what waits beside it."""
NEVER = 10**9
"""Steps after which a group is too old."""


class BufferLoad:
    """A model's serving with `episodes` ready beside those that come and go."""

    def __init__(self, episodes: int) -> None:
        self._pool = RaaSPool([MODEL])
        request = m.RegisterRaaSRequest(uid="raas-0", raas_url="http://raas-0")
        self._owner = self._pool.register(request, 0).instance.key
        self._books = Books(Ledger(), self._pool)
        policies = Policies({MODEL: SAMPLES})
        ready = m.ReadyRequest(
            train_batch_size=GROUPS * SAMPLES, sender_endpoint="h:1", model_id=MODEL, manifest=manifest(0)
        )
        policies.make_ready(ready)
        self._policies = policies
        self._books.admit(MODEL, Admission(GROUPS, NEVER))
        self._serving = DataServing(
            self._books,
            policies,
            TrajectoryLog(None),
            Waits(),
            ServingRules(max_staleness=NEVER),
            statistics=dict,
            lacking=lambda model_id: "",
        )
        task = m.Task(task_id="t", group_id=0, data={})
        self._episodes = tuple(trajectory(task, i, Value(float(i % 2)), (0,) * TOKENS) for i in range(SAMPLES))
        self._version = 0
        self._announce(0)
        for _ in range(episodes // SAMPLES):
            self._arrive()

    @property
    def ready(self) -> int:
        """Episodes that wait for a batch."""
        return SAMPLES * self._serving.ready(MODEL)

    async def step(self) -> None:
        """A batch's worth of groups comes in, and a batch is trained."""
        for _ in range(GROUPS):
            self._arrive()
        await self._serving.batch(m.BatchRequest(model_id=MODEL, version=self._version, timeout=0.0))
        self._announce(self._version + 1)

    def _arrive(self) -> None:
        (issued,) = self._books.record(Issue(0))
        number = issued.group_id
        self._books.record(Lease((number,), self._owner, 1.0))
        self._books.record(Finish(number, self._owner, (GroupKey(MODEL),)))
        self._books.record(Curate(number))
        group = Group(group_id=number, task_id="t", prompt_id=0, model_id=MODEL, trajectories=self._episodes)
        self._serving.add(group)

    def _announce(self, version: int) -> None:
        news = m.NotifyVersionRequest(version=version, step=version, model_id=MODEL, manifest=manifest(version))
        self._policies.announce(news, served=self._serving.has_served(MODEL))
        if version > 0:
            self._serving.acknowledge(MODEL, version)
            self._books.admissions[MODEL].advance(version)
        self._serving.advance(MODEL)
        self._version = version


def episode_cost_us(buffered: int, steps: int = 60) -> float:
    """Microseconds from issue to trained of one episode, with so many beside it in the buffer."""

    async def body() -> float:
        load = BufferLoad(buffered)
        started = time.perf_counter()
        for _ in range(steps):
            await load.step()
        return (time.perf_counter() - started) / (steps * GROUPS * SAMPLES) * 1e6

    return asyncio.run(body())
