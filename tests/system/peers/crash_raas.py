"""A RaaS as a process of its own: the real protocol, scripted episodes that take a while and sometimes fail."""

import argparse
import asyncio
import contextlib
import random
import signal
from pathlib import Path
from uuid import uuid4

import msgspec

from astraflow.core.data import Failed, Invalid
from astraflow.core.observability.lifeline import watch_parent
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import DataflowClient, Server
from astraflow.core.protocol import messages as m
from astraflow.dataflow.scripted import Outcome, ScriptedRaaS
from astraflow.errors import AstraFlowError

HEARTBEAT_S = 0.3


def script(task: m.Task, version: int) -> list[Outcome] | None:
    """The same outcome for the same group, whoever runs it: most are worth training on."""
    chance = random.Random(task.group_id)
    match chance.randrange(20):
        case 0:
            return None
        case 1:
            return [1.0, 1.0]
        case 2:
            return [Failed("crash"), Invalid("timeout")]
        case _:
            return [0.0, 1.0]


class SlowRaaS(ScriptedRaaS):
    """Episodes end one by one, some late; a late one has tokens of the version that it began with."""

    async def work(self) -> None:
        chance = random.Random(uuid4().int)
        began: dict[str, int] = {}
        while True:
            await asyncio.sleep(0.01)
            for task_id in list(self.running):
                began.setdefault(task_id, self.version)
                if chance.random() < 0.3:
                    first = began.pop(task_id)
                    await self.finish([task_id], [first, *[self.version] * chance.randint(1, 20)])


async def serve(uid: str, dataflow_url: str, run_dir: RunDirectory) -> None:
    token = run_dir.token()
    raas = SlowRaaS(uid, token, script, max_concurrency=16, hold=True)
    server = Server(raas.app)
    raas.url = server.url
    incarnation = uuid4().hex
    client = DataflowClient(dataflow_url, token, timeout=5)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    run_dir.announce(uid, server.url)
    tasks = [asyncio.create_task(server.serve()), asyncio.create_task(raas.work())]
    while not stopping.is_set():
        with contextlib.suppress(AstraFlowError):
            await client.register_raas(raas.registration(incarnation=incarnation))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), HEARTBEAT_S)
    tasks[1].cancel()
    server.stop()
    await tasks[0]
    await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=Path, required=True)
    given = msgspec.json.decode(parser.parse_args().settings.read_bytes())
    watch_parent(0.5)
    asyncio.run(serve(given["uid"], given["dataflow_url"], RunDirectory(given["run_dir"])))
