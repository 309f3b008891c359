"""docs/custom-trainer.md and docs/custom-raas.md, followed word for word: with our other parts, and with each other."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from astraflow.core.data import Manifest
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import DataflowClient, Server
from astraflow.core.protocol import messages as m
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import lay_out
from astraflow.dataflow.audit import audit
from astraflow.dataflow.scripted import ScriptedRaaS
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient

ROOT = Path(__file__).parents[2]
PAGES = [(ROOT / "docs" / name).read_text("utf-8") for name in ("custom-trainer.md", "custom-raas.md")]
FILES = dict(re.findall(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```$", "".join(PAGES), re.MULTILINE | re.DOTALL))
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"^```console\n(.*?)^```$", "".join(PAGES), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
TOKEN = "of-these-programs"
STEPS, GROUPS, N_SAMPLES = 20, 8, 8


@pytest.mark.parametrize("name", ["custom_trainer.py", "custom_raas.py", "next_letter.py"])
def test_the_pages_show_the_examples(name: str) -> None:
    assert FILES[name] == (ROOT / "examples" / name).read_text("utf-8")


def test_the_pages_have_the_commands_that_are_followed_here() -> None:
    assert sorted(FILES) == ["custom_raas.py", "custom_trainer.py", "dataflow.json", "next_letter.py"]
    assert COMMANDS == [
        "export ASTRAFLOW_TOKEN=a-long-random-word",
        "python -c \"from astraflow.core.text import tiny_tokenizer; tiny_tokenizer().save('tokenizer')\"",
        "python -m astraflow.dataflow.app --settings dataflow.json &",
        "python custom_raas.py http://127.0.0.1:8000 weights &",
        "python custom_trainer.py http://127.0.0.1:8000 weights",
        "kill %2",
    ]


class Folder:
    """The pages' files in an empty folder, and the programs that run there; a port of their own is taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name, text in FILES.items():
            (path / name).write_text(text.replace('"port": 8000', '"port": 0'), "utf-8")
        tiny_tokenizer().save(path / "tokenizer")
        self.run_dir = RunDirectory(path / "run")
        self.processes: list[subprocess.Popen[str]] = []
        self.dataflow = self.start("-m", "astraflow.dataflow.app", "--settings", "dataflow.json")

    def start(self, *argv: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *argv],
            cwd=self.path,
            env={**os.environ, "ASTRAFLOW_TOKEN": TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def url(self) -> str:
        while (announced := self.run_dir.endpoint("dataflow", self.dataflow.pid)) is None:
            assert self.dataflow.poll() is None, self.dataflow.communicate()[0]
            time.sleep(0.02)
        return announced.url

    def raas(self) -> subprocess.Popen[str]:
        return self.start("custom_raas.py", self.url(), "weights")

    def trainer(self) -> subprocess.Popen[str]:
        return self.start("custom_trainer.py", self.url(), "weights")

    def conserved(self, steps: int = STEPS) -> None:
        report = audit(self.run_dir.ledger)
        assert report.conserved, report.problems
        assert report.trained == steps * GROUPS


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", TOKEN)
    folder = Folder(tmp_path)
    try:
        yield folder
    finally:
        for process in folder.processes:
            process.kill()
            process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


def rewards(output: str) -> list[float]:
    return [
        float(reward) for reward in re.findall(r"^step \d+: reward ([\d.]+), staleness [012]$", output, re.MULTILINE)
    ]


@pytest.mark.system
def test_the_trainer_and_the_raas_of_the_pages_learn_together(folder: Folder) -> None:
    raas = folder.raas()
    seen = rewards(ended(folder.trainer()))
    assert len(seen) == STEPS
    assert sum(seen[-5:]) / 5 > sum(seen[:5]) / 5 + 0.3
    ended(folder.dataflow)
    raas.terminate()
    ended(raas)
    folder.conserved()


@pytest.mark.system
def test_the_trainer_of_the_page_with_our_raas(folder: Folder) -> None:
    def half_right(task: m.Task, version: int) -> list[float]:
        return [float(index % 2) for index in range(N_SAMPLES)]

    async def body(url: str) -> str:
        raas = ScriptedRaaS("scripted", TOKEN, half_right, tokens=3)
        server = Server(raas.app)
        raas.url = server.url
        serving = asyncio.create_task(server.serve())
        client = DataflowClient(url, TOKEN)
        await client.register_raas(raas.registration())
        output = await asyncio.to_thread(ended, folder.trainer())
        await client.close()
        server.stop()
        await serving
        return output

    assert rewards(asyncio.run(asyncio.wait_for(body(folder.url()), 60))) == [0.5] * STEPS
    ended(folder.dataflow)
    folder.conserved()


@pytest.mark.system
def test_the_raas_of_the_page_with_our_trainer(folder: Folder) -> None:
    """Ours only counts; its weights, the same in every version, know every second answer."""
    data = (2 * np.roll(np.eye(8, dtype=np.float32), 1, axis=1)).tobytes()
    layout = lay_out([("table", (8, 8), "float32")])
    weights = folder.path / "weights"
    weights.mkdir()

    def publish(version: int) -> Manifest:
        (weights / str(version)).write_bytes(data)
        return build_manifest("model0", version, layout, memoryview(data))

    raas = folder.raas()
    with AstraFlowClient(folder.url(), TOKEN, "model0") as client:
        assert client.signal_ready(GROUPS * N_SAMPLES, "127.0.0.1:0", publish(0)) == 1
        client.notify_version(0, 0)
        share = []
        for step in range(1, STEPS + 1):
            batch = client.get_batch(step - 1, timeout=60).batch
            ages = step - 1 - batch.versions[batch.loss_mask.astype(bool)]
            assert set(ages.tolist()) <= {0, 1, 2}
            share.append(batch.rewards.mean())
            client.notify_version(step, step, publish(step))
        assert 0.4 < np.mean(share) < 0.6
        while (served := client.initialize()["raas_pool"]["instances"][0]["version"]) != STEPS:
            assert served < STEPS
            time.sleep(0.02)
        # a version whose bytes are not what its manifest says is not served
        true = publish(STEPS)
        (weights / str(STEPS + 1)).write_bytes(data[:-4] + b"\0\0\0\1")
        client.get_batch(STEPS, timeout=60)
        client.notify_version(STEPS + 1, STEPS + 1, msgspec.structs.replace(true, version=STEPS + 1))
        time.sleep(0.5)
        (instance,) = client.initialize()["raas_pool"]["instances"]
        assert instance["version"] == STEPS
        client.shutdown_service()
    ended(folder.dataflow)
    raas.terminate()
    ended(raas)
    folder.conserved(STEPS + 1)
