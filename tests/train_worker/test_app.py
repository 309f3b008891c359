"""The train worker as a process: a settings file, a real weight sender, a scripted Dataflow on a real port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astraflow.core.config import ExperimentConfig, write_settings
from astraflow.core.model import load_model, new_model, save_model
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import Server
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.train_worker.config import TrainerConfig, TrainWorkerSettings

STEPS = 2


@dataclass
class Bench:
    """A run directory with a model in it, and a Dataflow that answers."""

    root: Path
    dataflow: Any
    url: str

    def settings(self, **changes: Any) -> Path:
        settings = TrainWorkerSettings(
            experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(self.root)),
            model_id="model0",
            model_path=str(self.root / "model"),
            n_samples=2,
            max_new_tokens=3,
            trainer=TrainerConfig(total_train_steps=STEPS, train_batch_size=4),
            dataflow_url=self.url,
            run_dir=str(self.root),
        ).model_copy(update=changes)
        return write_settings(settings, self.root / "settings" / "train_worker-model0.json")

    def start(self, settings: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "astraflow.train_worker.app", "--settings", str(settings)],
            env={**os.environ, "ASTRAFLOW_TOKEN": "token"},
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )


@pytest.fixture(name="bench")
def _bench(tmp_path: Path, scripted: SimpleNamespace, loop: asyncio.AbstractEventLoop) -> Iterator[Bench]:
    decoder = new_model("tiny-0.2m", seed=1)
    save_model(tmp_path / "model", decoder, decoder.config)
    tiny_tokenizer().save(tmp_path / "model")

    def make(version: int) -> Any:
        rows = [(group, sample) for group in range(2) for sample in range(2)]
        return scripted.batch_of([scripted.trajectory(g, s, [5, 6], [7, 8 + s], float(s)) for g, s in rows])

    dataflow = scripted.Dataflow(make)
    server = Server(dataflow.app)
    serving = asyncio.run_coroutine_threadsafe(server.serve(), loop)
    yield Bench(tmp_path, dataflow, server.url)
    server.stop()
    serving.result()
    server.close()


def test_a_run_from_settings_to_exit(bench: Bench) -> None:
    process = bench.start(bench.settings())
    _, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    records = [json.loads(line) for line in RunDirectory(bench.root).metrics.read_text("utf-8").splitlines()]
    assert [record["step"] for record in records] == [1, 2]
    assert [n.version for n in bench.dataflow.notified] == [0, 1, 2]
    digests = [n.manifest.digest for n in bench.dataflow.notified]
    assert digests[0] == bench.dataflow.ready[0].manifest.digest
    assert len(set(digests)) == 3
    load_model(bench.root / "checkpoints" / "step_000002")
    assert RunDirectory(bench.root).endpoint("train_worker-model0", process.pid) is not None


def test_sigterm_while_it_waits_ends_it_in_order(bench: Bench) -> None:
    asked = bench.dataflow.hold_batches()
    process = bench.start(bench.settings())
    assert asked.wait(timeout=120)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=120)
    assert process.returncode == 143, log
    assert "stopped by a signal" in log


def test_a_missing_model_is_a_configuration_error(bench: Bench) -> None:
    process = bench.start(bench.settings(model_path=str(bench.root / "nothing")))
    _, log = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "ConfigError" in log
    assert "Traceback" not in log


def test_settings_that_cannot_be_read(bench: Bench) -> None:
    process = bench.start(bench.root / "none.json")
    _, log = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "settings file" in log
