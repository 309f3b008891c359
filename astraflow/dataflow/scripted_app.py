"""A scripted RaaS as a process of its own: python -m astraflow.dataflow.scripted_app --settings FILE.

It speaks the real protocol; its episodes end at once and half of a group's samples are right. For benches.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from astraflow.core.config import Section, read_settings
from astraflow.core.observability.lifeline import watch_parent
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import DataflowClient, Server
from astraflow.core.protocol import messages as m
from astraflow.dataflow.scripted import Outcome, ScriptedRaaS

HEARTBEAT_S = 2.0


class ScriptedRaaSSettings(Section):
    """What the process is given."""

    uid: str
    dataflow_url: str
    run_dir: str
    n_samples: int
    tokens: int
    """Sampled ones of each sample."""
    max_concurrency: int
    """Groups at once."""


async def serve(settings: ScriptedRaaSSettings) -> None:
    """Register, answer, and stop in order at SIGTERM."""

    def script(task: m.Task, version: int) -> list[Outcome]:
        return [float(index % 2) for index in range(settings.n_samples)]

    run_dir = RunDirectory(settings.run_dir)
    token = run_dir.token()
    raas = ScriptedRaaS(settings.uid, token, script, max_concurrency=settings.max_concurrency, tokens=settings.tokens)
    server = Server(raas.app)
    raas.url = server.url
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    serving = asyncio.create_task(server.serve())
    run_dir.announce(settings.uid, server.url)
    client = DataflowClient(settings.dataflow_url, token)
    registering = asyncio.create_task(_stay_registered(client, raas))
    await stopping.wait()
    registering.cancel()
    await asyncio.gather(registering, return_exceptions=True)
    await client.close()
    server.stop()
    await serving


async def _stay_registered(client: DataflowClient, raas: ScriptedRaaS) -> None:
    while True:
        await client.register_raas(raas.registration())
        await asyncio.sleep(HEARTBEAT_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="python -m astraflow.dataflow.scripted_app", description="A scripted RaaS.")
    parser.add_argument("--settings", type=Path, required=True)
    watch_parent()
    asyncio.run(serve(read_settings(ScriptedRaaSSettings, parser.parse_args(argv).settings)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
