"""A RaaS of one's own: rollouts of a model that is a table of letters, without AstraFlow's engines and workflows.

python custom_raas.py http://127.0.0.1:8000 weights
"""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from uuid import uuid4

import msgspec
import numpy as np

from astraflow.core.data import StopReason, Trajectory, Turn, Value
from astraflow.core.data.trajectory import Episode, GroupResult
from astraflow.core.protocol import DataflowClient, Endpoint, Server, StatusEndpoint, build_app
from astraflow.core.protocol import messages as m
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.errors import AstraFlowError, CallerError, ConflictError

MODEL = "model0"
LETTERS = "abcdefgh"
WORKFLOW = "next_letter"
ROOM = 16
"""Groups at once."""
HEARTBEAT_S = 2.0


class LetterRaaS:
    """One method a route that Dataflow calls. Errors that it raises leave as the documented body."""

    def __init__(self, uid: str, folder: Path) -> None:
        self.uid = uid
        self.folder = folder
        self.table = np.zeros((len(LETTERS), len(LETTERS)))
        self.served: m.VersionState | None = None
        self.n_samples: dict[str, int] = {}
        """Of each workflow."""
        self.results: dict[m.Lane, dict[str, m.PulledItem]] = {"train": {}, "eval": {}}
        self.news = asyncio.Condition()
        self.chance = np.random.default_rng()

    def routes(self) -> list[Endpoint | StatusEndpoint]:
        messages: dict[str, type[msgspec.Struct]] = {
            "register_workflow": m.RegisterWorkflowRequest,
            "notify_version": m.RaaSNotifyVersionRequest,
            "submit": m.SubmitRequest,
            "pull": m.PullRequest,
            "cancel": m.CancelRequest,
        }
        posts = [Endpoint("POST", f"/{name}", kind, getattr(self, name), True) for name, kind in messages.items()]
        return [StatusEndpoint("/status", self.status), *posts]

    def status(self) -> m.RaaSStatus:
        """What counts for Dataflow is the version, and the digest that we took of our own weights."""
        versions = {MODEL: self.served} if self.served else {}
        return m.RaaSStatus(
            status="ready" if self.served else "idle",
            engine_id=self.uid,
            backend="table",
            models=[MODEL],
            versions=versions,
            inflight=0,
        )

    async def register_workflow(self, request: m.RegisterWorkflowRequest) -> m.RegisterWorkflowResult:
        """Dataflow says what an episode is to be; the same again is fine."""
        if request.workflow_cls != WORKFLOW:
            raise CallerError(f"unknown workflow '{request.workflow_cls}'; known: {WORKFLOW}")
        name, known = request.workflow_id, len(self.n_samples)
        self.n_samples[name] = int(request.gconfig_overrides["n_samples"])
        total = len(self.n_samples)
        return m.RegisterWorkflowResult(workflow_id=name, registered=total > known, total_workflows=total)

    async def notify_version(self, request: m.RaaSNotifyVersionRequest) -> m.RaaSNotifyVersionResult:
        """Fetch a version, prove it, serve it. From here on tokens carry its number."""
        number = self.served.number if self.served else -1
        if request.version <= number:
            reason = f"version={request.version} <= local={number}"
            return m.RaaSNotifyVersionResult(ok=True, model_id=MODEL, version=number, pulled=False, reason=reason)
        if request.manifest is None:
            raise CallerError(f"version {request.version} comes without a manifest")
        data = (self.folder / str(request.version)).read_bytes()
        digest = build_manifest(MODEL, request.version, request.manifest.tensors, memoryview(data)).digest
        if digest != request.manifest.digest:
            raise ConflictError(f"version {request.version} has digest {digest}, not {request.manifest.digest}")
        self.table = np.frombuffer(data, np.float32).reshape(self.table.shape).astype(np.float64)
        self.served = m.VersionState(number=request.version, digest=digest, verified=True)
        return m.RaaSNotifyVersionResult(ok=True, model_id=MODEL, version=request.version, pulled=True)

    async def submit(self, request: m.SubmitRequest) -> list[m.Accepted]:
        """Episodes here end at once; in general they go on beside, and `pull` finds their results later."""
        n_samples = self.n_samples.get(request.workflow_id)
        if n_samples is None or self.served is None or request.version not in (None, self.served.number):
            raise ConflictError(f"'{request.workflow_id}' is not registered, or version {request.version} not served")
        for task in request.tasks:
            numbers = range(task.n_samples or n_samples)
            episodes = tuple(Episode((self.sample(task, number, self.served.number),)) for number in numbers)
            result = GroupResult(group_id=task.group_id, episodes=episodes)
            item = m.PulledItem(task_id=task.task_id, lease=task.lease, result=result)
            self.results[request.lane].setdefault(task.task_id, item)
        async with self.news:
            self.news.notify_all()
        return [m.Accepted(task_id=task.task_id, accepted=True) for task in request.tasks]

    def sample(self, task: m.Task, number: int, version: int) -> Trajectory:
        """One episode: a letter asks, the model answers with one. All arrays of a turn are aligned."""
        asked = LETTERS.index(task.data["messages"][-1]["content"])
        scores = np.exp(self.table[asked] - self.table[asked].max())
        probabilities = scores / scores.sum()
        answer = int(probabilities.argmax() if task.greedy else self.chance.choice(len(LETTERS), p=probabilities))
        turn = Turn(
            ids=np.array([asked, answer], np.int32),
            mask=np.array([0, 1], np.uint8),
            logprobs=np.array([0, np.log(probabilities[answer])], np.float32),
            versions=np.array([-1, version], np.int32),
        )
        return Trajectory(
            task_id=task.task_id,
            group_id=task.group_id,
            sample_id=(task.group_id << 16) | number,
            model_id=MODEL,
            turns=(turn,),
            reward=Value(float(LETTERS[answer] == task.data["answer"])),
            stop=StopReason.STOP,
        )

    async def pull(self, request: m.PullRequest) -> list[m.PulledItem]:
        """A long poll. A result is kept, and given again, until a later poll acknowledges it."""
        results = self.results[request.lane]
        for task_id in request.ack:
            results.pop(task_id, None)
        try:
            async with asyncio.timeout(request.timeout), self.news:
                await self.news.wait_for(lambda: bool(results))
        except TimeoutError:
            return []
        return list(results.values())[: request.max_items]

    async def cancel(self, request: m.CancelRequest) -> m.CancelResult:
        return m.CancelResult(cancelled=[])


async def main(url: str, folder: Path) -> None:
    token = os.environ["ASTRAFLOW_TOKEN"]
    raas = LetterRaaS(f"letters-{os.getpid()}", folder)
    server = Server(build_app("letter RaaS", token, raas.routes()))
    serving = asyncio.create_task(server.serve())
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    client = DataflowClient(url, token)
    capabilities = {"max_concurrency": ROOM, "models": [MODEL], "backend": "table", "incarnation": uuid4().hex}
    registration = m.RegisterRaaSRequest(uid=raas.uid, raas_url=server.url, capabilities=capabilities)
    while not stopping.is_set():
        try:
            await client.register_raas(registration)  # again and again: a sign of life, and Dataflow may be a new one
        except AstraFlowError as error:
            print(f"cannot register: {error}", file=sys.stderr)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), HEARTBEAT_S)
    server.stop()
    await serving
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
