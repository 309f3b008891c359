"""What Dataflow itself costs, with its durable ledger: `astraflow bench dataflow`.

throughput   Dataflow and a scripted RaaS as processes, over loopback; a trainer that only counts. Each episode goes
             submit → pull → ledger → curation → batch
batch        GET /batch of 256 × 1,000 tokens that are ready, as the trainer waits for it
cost         one episode from issue to trained, in process, with 10^3 to 10^6 episodes in the buffer beside it
memory       resident size of the Dataflow process, before and after
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from astraflow.core.config import write_settings
from astraflow.core.observability.lifeline import Child, await_announcement, spawn
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import DataflowClient
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.dataflow.bench_buffer import episode_cost_us
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import ScriptedTrainer
from astraflow.dataflow.scripted_app import ScriptedRaaSSettings
from astraflow.errors import DataError

START_S = 60.0
WARM_UP_STEPS = 3


class Load(msgspec.Struct, frozen=True):
    """What goes through."""

    groups: int
    """Of a batch."""
    n_samples: int
    tokens: int
    """Sampled ones of an episode."""
    in_flight: int
    """Groups at once in the RaaS."""
    max_staleness: int = 4


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """A run of some seconds."""

    episodes_per_s: float
    tokens_per_s: float
    episodes: int
    batch_ms: dict[str, float]
    """p50 and p95 of GET /batch in milliseconds, the wait for its groups included."""
    cpu_us: dict[str, float]
    """Process → microseconds of processor time an episode; what a busy machine does not change."""
    memory_mb: tuple[float, float]
    """Resident size of the Dataflow process after the warm-up and at the end."""


class DataflowBench(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured."""

    durable: bool
    throughput: Throughput
    ready_batch_ms: float
    """Median of GET /batch of 256 × 1,000 tokens when its groups are ready."""
    episode_cost_us: dict[int, float]
    """Episodes in the buffer → microseconds of one more, from issue to trained."""


def bench(
    directory: Path, seconds: float, *, durable: bool = True, sizes: Sequence[int] = (10**3, 10**4, 10**5, 10**6)
) -> DataflowBench:
    """Measure in fresh run directories; `sizes`: episodes in the buffer beside the one whose cost is measured."""
    steady = Load(groups=32, n_samples=8, tokens=512, in_flight=192)
    throughput = asyncio.run(_throughput(directory / "throughput", steady, seconds, durable))
    large = Load(groups=32, n_samples=8, tokens=1000, in_flight=192)
    return DataflowBench(
        durable=durable,
        throughput=throughput,
        ready_batch_ms=round(asyncio.run(_ready_batch(directory / "batch", large, durable)), 2),
        episode_cost_us={n: round(episode_cost_us(n), 2) for n in sizes},
    )


class Processes:
    """A Dataflow and a scripted RaaS, started on entry and stopped on exit."""

    def __init__(self, directory: Path, load: Load, durable: bool) -> None:
        self.run_dir = RunDirectory(directory)
        self._load = load
        self._durable = durable
        self._children: list[Child] = []

    def __enter__(self) -> Processes:
        tokenizer = self.run_dir.root / "tokenizer"
        tiny_tokenizer().save(tokenizer)
        self._start("dataflow", "astraflow.dataflow.app", self._dataflow(tokenizer))
        raas = ScriptedRaaSSettings(
            uid="raas-0",
            dataflow_url=self.url,
            run_dir=str(self.run_dir.root),
            n_samples=self._load.n_samples,
            tokens=self._load.tokens,
            max_concurrency=self._load.in_flight,
        )
        self._start("raas-0", "astraflow.dataflow.scripted_app", raas)
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            child.stop()

    @property
    def url(self) -> str:
        """Dataflow's address."""
        announced = self.run_dir.endpoint("dataflow")
        assert announced is not None
        return announced.url

    @property
    def memory_mb(self) -> float:
        """Resident size of the Dataflow process."""
        status = Path(f"/proc/{self._children[0].pid}/status").read_text("ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return round(int(line.split()[1]) / 1024, 1)

    def cpu_s(self) -> dict[str, float]:
        """Process → seconds of processor time so far."""
        ticks = os.sysconf("SC_CLK_TCK")
        found = {}
        for child in self._children:
            # after the name in parentheses: state is field 3, utime and stime are 14 and 15
            fields = Path(f"/proc/{child.pid}/stat").read_text("ascii").rpartition(")")[2].split()
            found[child.name] = (int(fields[11]) + int(fields[12])) / ticks
        return found

    def _start(self, name: str, module: str, settings: DataflowSettings | ScriptedRaaSSettings) -> None:
        write_settings(settings, self.run_dir.settings(name))
        argv = (sys.executable, "-m", module, "--settings", str(self.run_dir.settings(name)))
        child = spawn(argv, self.run_dir.log(name), name=name)
        self._children.append(child)
        await_announcement(self.run_dir, [child], START_S)

    def _dataflow(self, tokenizer: Path) -> DataflowSettings:
        load = self._load
        return DataflowSettings.model_validate(
            {
                "experiment": {"experiment_name": "bench", "trial_name": "t", "fileroot": str(self.run_dir.root)},
                "dataflow": {
                    "rollout_dataset": {"dataset_fn": "astraflow.dataflow.scripted:example_rows", "n": 1000},
                    "buffer": {"max_staleness": load.max_staleness},
                    "ledger": {"durable": self._durable},
                },
                "gconfigs": {"model0": {"n_samples": load.n_samples, "max_new_tokens": load.tokens}},
                "tokenizer_path": str(tokenizer),
                "run_dir": str(self.run_dir.root),
            }
        )


async def _throughput(directory: Path, load: Load, seconds: float, durable: bool) -> Throughput:
    with Processes(directory, load, durable) as processes:
        client = DataflowClient(processes.url, processes.run_dir.token())
        trainer = ScriptedTrainer(client, batch_size=load.groups * load.n_samples)
        await trainer.begin()
        for _ in range(WARM_UP_STEPS):
            await trainer.train()
        memory, cpu = processes.memory_mb, processes.cpu_s()
        waits: list[float] = []
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            asked = time.perf_counter()
            await trainer.batch()
            waits.append(1e3 * (time.perf_counter() - asked))
            trainer.version, trainer.step = trainer.version + 1, trainer.step + 1
            await trainer.announce()
        elapsed = time.perf_counter() - started
        episodes = len(waits) * load.groups * load.n_samples
        p50, p95 = np.percentile(waits, (50, 95)).tolist()
        await client.close()
        return Throughput(
            episodes_per_s=round(episodes / elapsed, 1),
            tokens_per_s=round(episodes * load.tokens / elapsed, 1),
            episodes=episodes,
            batch_ms={"p50": round(p50, 2), "p95": round(p95, 2)},
            cpu_us={name: round((s - cpu[name]) / episodes * 1e6, 1) for name, s in processes.cpu_s().items()},
            memory_mb=(memory, processes.memory_mb),
        )


async def _ready_batch(directory: Path, load: Load, durable: bool, batches: int = 15) -> float:
    """Median milliseconds of a batch whose groups are there when it is asked for."""
    with Processes(directory, load, durable) as processes:
        client = DataflowClient(processes.url, processes.run_dir.token())
        trainer = ScriptedTrainer(client, batch_size=load.groups * load.n_samples)
        await trainer.begin()
        waits = []
        for _ in range(batches):
            await _until_ready(client, load.groups)
            asked = time.perf_counter()
            await trainer.batch()
            waits.append(1e3 * (time.perf_counter() - asked))
            trainer.version, trainer.step = trainer.version + 1, trainer.step + 1
            await trainer.announce()
        await client.close()
        return float(np.median(waits))


async def _until_ready(client: DataflowClient, groups: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if (await client.status())["live"]["ready"] >= groups:
            return
        await asyncio.sleep(0.05)
    raise DataError(f"{groups} groups were not ready within {START_S:.0f} s")
