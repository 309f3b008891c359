"""Rollout services of different speed that come and go while a model learns: python demo.py --help

The quickstart's model learns by real programs on this machine; how fast a service is, its environment decides. In each
phase, after some seconds to settle, the episodes that ended in a window are held against what the live services can do
together. At the end the accuracy of the run is held against that of runs that nothing disturbed.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import DataflowClient

HERE = Path(__file__).parent
ASTRAFLOW = [sys.executable, "-m", "astraflow.cli.main"]
SAMPLES, BATCH = 8, 256
"""Episodes of a group and of a batch, as in quickstart.yaml."""
JOINING_S = 10.0
"""Seconds that are allowed for services to start, in the number of steps."""
TIMEOUT_S, LAST_STEP_TIMEOUT_S = 120.0, 600.0
"""For a process to serve, and for a run to take its last step."""
T975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Runs → Student's t at 97.5% for one degree of freedom less."""


class DemoError(Exception):
    """The demonstration could not go on."""


@dataclass(frozen=True)
class Service:
    """A rollout service, and the episodes a second that it can do if all but its environment takes no time."""

    called: str
    uid: str
    capacity: float

    def env(self, places: int) -> dict[str, str]:
        """Of its process, for groups at once: its environment takes as long as makes that capacity of them."""
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, "ENVIRONMENT_S": str(places * SAMPLES / self.capacity)}


FAST, MIDDLE, SLOW = Service("fast", "raas-0", 128), Service("middle", "middle", 96), Service("slow", "slow", 64)
PHASES = {
    "two services": (FAST, MIDDLE),
    "a slow one joins late": (FAST, MIDDLE, SLOW),
    "the fast one is killed": (MIDDLE, SLOW),
    "the middle one drains": (SLOW,),
}
"""What has happened → who lives."""


class Run:
    """`astraflow run` with the fast service, and the services that join it by `astraflow join`."""

    def __init__(self, root: Path, seed: int, steps: int, places: int) -> None:
        self.dir = RunDirectory(root, create=False)
        self._log = root.with_name(f"{root.name}.log")
        self._log.unlink(missing_ok=True)
        self._places = places
        self._joined: list[subprocess.Popen[bytes]] = []
        recipe = [str(HERE.parent / "quickstart.yaml"), str(HERE / "elastic.yaml")]
        settings = [f"seed={seed}", f"experiment.fileroot={root}", f"trainer_base.total_train_steps={steps}"]
        began = time.time()
        self._run = self._start(["run", *recipe, *settings], FAST)
        announced = root / "endpoints" / "dataflow.json"
        # an earlier run of the directory is moved aside with what it announced
        self.wait_for("Dataflow", lambda: announced.exists() and announced.stat().st_mtime > began)

    def join(self, service: Service) -> None:
        self._joined.append(self._start(["join", str(self.dir.root), service.uid], service))

    def await_serving(self, *services: Service) -> None:
        """Wait until services have proved their weights."""
        uids = {service.uid for service in services}
        self.wait_for(" and ".join(sorted(uids)), lambda: uids <= self._serving())

    def kill(self, service: Service) -> None:
        announced = self.dir.endpoint(service.uid)
        assert announced is not None
        os.kill(announced.pid, signal.SIGKILL)

    def drain(self, service: Service) -> None:
        async def deregister() -> None:
            client = DataflowClient(self._url, self.dir.token())
            await client.deregister_raas(service.uid, drain=True, shutdown=True)
            await client.close()

        asyncio.run(deregister())

    def episodes(self) -> int:
        """Episodes that have ended so far, by Dataflow's own count."""
        self.check()
        lines = [line.split() for line in self._get("/metrics").decode().splitlines() if not line.startswith("#")]
        values = {line[0].partition("{")[0].removeprefix("astraflow_"): float(line[-1]) for line in lines if line}
        return int(SAMPLES * (values["acquisition_issued"] - values["acquisition_running"]))

    def finish(self) -> dict[str, float]:
        """Wait for the last step; the final accuracy, sampled and greedy."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._run.wait(LAST_STEP_TIMEOUT_S)
        self.check(goes_on=False)
        accuracy: dict[str, float] = json.loads(self.dir.summary.read_text())["accuracy_after"]
        return accuracy

    def wait_for(self, what: str, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not there():
            self.check()
            if time.monotonic() > deadline:
                raise DemoError(f"waited {TIMEOUT_S:.0f} s for {what}; see {self._log}")
            time.sleep(0.1)

    def check(self, goes_on: bool = True) -> None:
        """DemoError where the run has ended and should not, or has failed."""
        if self._run.poll() != (None if goes_on else 0):
            raise DemoError(f"the run {'has ended' if goes_on else 'failed or went on too long'}; see {self._log}")

    def stop(self) -> None:
        """End what still runs, in order; who joined leaves with the run."""
        if self._run.poll() is None:
            self._run.send_signal(signal.SIGINT)
        for process in (self._run, *self._joined):
            process.wait(30)

    @property
    def _url(self) -> str:
        announced = self.dir.endpoint("dataflow")
        assert announced is not None
        return announced.url

    def _serving(self) -> set[str]:
        rows: list[dict[str, Any]] = json.loads(self._get("/raas_pool"))["instances"]
        return {row["uid"] for row in rows if row["health"] == "healthy" and row["verified"]}

    def _get(self, route: str) -> bytes:
        request = urllib.request.Request(self._url + route, headers={"Authorization": f"Bearer {self.dir.token()}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            body: bytes = answer.read()
        return body

    def _start(self, command: list[str], service: Service) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*ASTRAFLOW, *command, f"rollout.max_concurrent_rollouts={self._places}"],
                env=service.env(self._places),
                stdout=log,
                stderr=subprocess.STDOUT,
            )


@contextlib.contextmanager
def running(root: Path, seed: int, arguments: argparse.Namespace) -> Iterator[Run]:
    run = Run(root, seed, steps_for(arguments), arguments.places)
    try:
        yield run
    finally:
        run.stop()


def disturbed(root: Path, arguments: argparse.Namespace) -> tuple[dict[str, float] | None, bool]:
    """The run whose services come and go: its final accuracy, and whether each window was within the tolerance.

    Where nothing is there to compare with, the accuracy is not waited for.
    """
    with running(root, 1, arguments) as run:
        run.join(MIDDLE)
        run.await_serving(FAST, MIDDLE)
        good = [window(run, "two services", arguments)]
        run.join(SLOW)
        run.await_serving(SLOW)
        good.append(window(run, "a slow one joins late", arguments))
        run.kill(FAST)
        good.append(window(run, "the fast one is killed", arguments))
        run.drain(MIDDLE)
        good.append(window(run, "the middle one drains", arguments))
        return run.finish() if arguments.undisturbed else None, all(good)


def window(run: Run, what: str, arguments: argparse.Namespace) -> bool:
    """Settle, measure, print; was it within the tolerance?"""
    time.sleep(arguments.settle)
    before, began = run.episodes(), time.monotonic()
    time.sleep(arguments.window)
    after, ended = run.episodes(), time.monotonic()
    rate, capacity = (after - before) / (ended - began), capacity_of(what)
    names = ", ".join(service.called for service in PHASES[what])
    print(f"{what:<24} {names:<20} {rate:7.1f} episodes/s of {capacity:5.1f}: {rate / capacity:6.1%}", flush=True)
    return abs(rate / capacity - 1) <= arguments.tolerance


def capacity_of(phase: str) -> float:
    """Episodes a second that the live services can do together."""
    return sum(service.capacity for service in PHASES[phase])


def undisturbed(root: Path, seed: int, arguments: argparse.Namespace) -> dict[str, float]:
    """A run with all services from its beginning to its end: the final accuracy."""
    with running(root, seed, arguments) as run:
        run.join(MIDDLE)
        run.join(SLOW)
        return run.finish()


def steps_for(arguments: argparse.Namespace) -> int:
    """Training steps such that the last window ends before the run does, and not long before."""
    rates = list(map(capacity_of, PHASES))
    return math.ceil(((arguments.settle + arguments.window) * sum(rates) + JOINING_S * rates[0]) / BATCH)


def interval(values: list[float]) -> tuple[float, float]:
    """Where one more of the same lies with 95%: mean ± t(97.5%, n - 1) · s · √(1 + 1/n)."""
    half = T975[len(values)] * statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def demonstrate(arguments: argparse.Namespace) -> bool:
    """All runs, and what they gave; was it as it should be?"""
    folder = arguments.runs.absolute()
    accuracy, good = disturbed(folder / "disturbed", arguments)
    if accuracy is None:
        return good
    print(f"after {steps_for(arguments)} steps: {shown(accuracy)}", flush=True)
    others = []
    for number in range(1, arguments.undisturbed + 1):
        others.append(undisturbed(folder / f"undisturbed-{number}", number + 1, arguments))
        print(f"undisturbed: {shown(others[-1])}", flush=True)
    low, high = interval([other["sampled"] for other in others])
    inside = low <= accuracy["sampled"] <= high
    print(f"95% interval of one more, sampled: {low:.1%} to {high:.1%}: {'inside' if inside else 'outside'}")
    return good and inside


def shown(accuracy: dict[str, float]) -> str:
    return f"sampled {accuracy['sampled']:.1%}, greedy {accuracy['greedy']:.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=float, default=20.0, help="seconds that are measured in each phase")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds before, after something has changed")
    parser.add_argument("--tolerance", type=float, default=0.1, help="exit code 1 where a window is further off")
    compared = "runs that nothing disturbs, to compare with; 0: windows only"
    parser.add_argument("--undisturbed", type=int, default=3, choices=(0, *T975), help=compared)
    parser.add_argument("--places", type=int, default=32, help="groups at once in a service; fewer are quicker ones")
    parser.add_argument("--runs", type=Path, default=Path("runs/elastic"), help="folder of the run directories")
    arguments = parser.parse_args()
    try:
        return 0 if demonstrate(arguments) else 1
    except DemoError as error:
        print(f"demo.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
