"""Rollout services of different speed that come and go, and what a run gets of them: python demo.py --help

Dataflow and the services are real processes on this machine; episodes and the trainer are scripted, so that what is
measured is how well the services are used. In each phase, after some seconds to settle, the episodes that ended in a
window are held against what the live services can do together.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from astraflow.core.config import write_settings
from astraflow.core.observability.lifeline import Child, await_announcement, spawn
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import DataflowClient
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import ScriptedTrainer
from astraflow.dataflow.scripted_app import ScriptedRaaSSettings

SAMPLES = 4
GROUPS = 56
"""Groups of a batch: about a second's worth of all services."""
MAX_STALENESS = 8


@dataclass(frozen=True)
class Service:
    """A rollout service that runs `places` groups at once, each for `group_s` seconds."""

    uid: str
    places: int
    group_s: float

    @property
    def capacity(self) -> float:
        """Episodes a second."""
        return SAMPLES * self.places / self.group_s


FAST, MIDDLE, SLOW = Service("fast", 32, 1.0), Service("middle", 32, 2.0), Service("slow", 32, 4.0)


class Demo:
    """The processes, and what they have done."""

    def __init__(self, directory: Path) -> None:
        self.run_dir = RunDirectory(directory)
        self.children: dict[str, Child] = {}
        tiny_tokenizer().save(directory / "tokenizer")
        settings = DataflowSettings.model_validate(
            {
                "experiment": {"experiment_name": "elastic", "trial_name": "demo", "fileroot": str(directory)},
                "dataflow": {
                    "rollout_dataset": {"dataset_fn": "astraflow.dataflow.scripted:example_rows", "n": 1000},
                    "buffer": {"max_staleness": MAX_STALENESS},
                },
                "gconfigs": {"model0": {"n_samples": SAMPLES}},
                "tokenizer_path": str(directory / "tokenizer"),
                "run_dir": str(directory),
            }
        )
        self._start("dataflow", "astraflow.dataflow.app", settings)
        self.url = self.run_dir.endpoint("dataflow").url
        self.client = DataflowClient(self.url, self.run_dir.token())

    def join(self, service: Service) -> None:
        settings = ScriptedRaaSSettings(
            uid=service.uid,
            dataflow_url=self.url,
            run_dir=str(self.run_dir.root),
            n_samples=SAMPLES,
            tokens=32,
            max_concurrency=service.places,
            group_s=service.group_s,
        )
        self._start(service.uid, "astraflow.dataflow.scripted_app", settings)

    def kill(self, service: Service) -> None:
        os.kill(self.children[service.uid].pid, signal.SIGKILL)

    async def drain(self, service: Service) -> None:
        await self.client.deregister_raas(service.uid, drain=True, shutdown=True)

    def episodes(self) -> int:
        """Episodes that have ended so far, by Dataflow's own count."""
        headers = {"Authorization": f"Bearer {self.run_dir.token()}"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}/metrics", headers=headers)) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
        values = {line[0].partition("{")[0].removeprefix("astraflow_"): float(line[-1]) for line in lines if line}
        return int(SAMPLES * (values["acquisition_issued"] - values["acquisition_running"]))

    async def train(self) -> None:
        """A trainer that only counts."""
        trainer = ScriptedTrainer(self.client, batch_size=GROUPS * SAMPLES)
        await trainer.begin()
        while True:
            await trainer.train(timeout=60.0)

    def stop(self) -> None:
        for child in reversed(self.children.values()):
            child.stop()

    def _start(self, name: str, module: str, settings: DataflowSettings | ScriptedRaaSSettings) -> None:
        write_settings(settings, self.run_dir.settings(name))
        argv = (sys.executable, "-m", module, "--settings", str(self.run_dir.settings(name)))
        child = self.children[name] = spawn(argv, self.run_dir.log(name), name=name)
        await_announcement(self.run_dir, [child], 60.0)


async def phase(demo: Demo, what: str, live: list[Service], arguments: argparse.Namespace) -> bool:
    """Settle, measure a window, print it; was it within the tolerance?"""
    await asyncio.sleep(arguments.settle)
    before, began = await asyncio.to_thread(demo.episodes), time.monotonic()
    await asyncio.sleep(arguments.window)
    after, ended = await asyncio.to_thread(demo.episodes), time.monotonic()
    rate, capacity = (after - before) / (ended - began), sum(service.capacity for service in live)
    names = ", ".join(service.uid for service in live)
    print(f"{what:<24} {names:<20} {rate:7.1f} episodes/s of {capacity:5.0f}: {rate / capacity:6.1%}", flush=True)
    return abs(rate / capacity - 1) <= arguments.tolerance


async def run(demo: Demo, arguments: argparse.Namespace) -> bool:
    training = asyncio.create_task(demo.train())
    demo.join(FAST)
    demo.join(MIDDLE)
    good = [await phase(demo, "two services", [FAST, MIDDLE], arguments)]
    demo.join(SLOW)
    good.append(await phase(demo, "a slow one joins late", [FAST, MIDDLE, SLOW], arguments))
    demo.kill(FAST)
    good.append(await phase(demo, "the fast one is killed", [MIDDLE, SLOW], arguments))
    await demo.drain(MIDDLE)
    good.append(await phase(demo, "the middle one drains", [SLOW], arguments))
    training.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await training
    await demo.client.close()
    return all(good)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=float, default=20.0, help="seconds that are measured in each phase")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds before, after something has changed")
    parser.add_argument("--tolerance", type=float, default=0.1, help="exit code 1 where a window is further off")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="astraflow-elastic-") as directory:
        demo = Demo(Path(directory))
        try:
            return 0 if asyncio.run(run(demo, arguments)) else 1
        finally:
            demo.stop()


if __name__ == "__main__":
    sys.exit(main())
