"""The process: it binds, announces, serves and ends in order; what is wrong with a dataset ends it at once."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from astraflow.core.config import write_settings
from astraflow.core.data import Failed
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import DataflowClient, RaaSClient, Server
from astraflow.core.protocol import messages as m
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.dataflow.app import create_service
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Outcome, ScriptedRaaS, ScriptedTrainer
from astraflow.errors import PeerError

DATASET = """
def rows(n=9):
    return [
        {"messages": [{"role": "user", "content": f"{i}+1="}], "answer": str(i + 1), "task_id": f"sum-{i}"}
        for i in range(n)
    ]
"""


@contextmanager
def program(path: Path, dataset_fn: str = "my_rows:rows") -> Iterator[subprocess.Popen[str]]:
    """Dataflow as a process of its own, with a dataset module and a tokenizer in `path`."""
    (path / "my_rows.py").write_text(DATASET, "utf-8")
    tiny_tokenizer().save(path / "tokenizer")
    settings = DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(path)},
            "dataflow": {"rollout_dataset": {"dataset_fn": dataset_fn}, "max_failure_streak": 8},
            "gconfigs": {"model0": {"n_samples": 2}},
            "tokenizer_path": str(path / "tokenizer"),
            "run_dir": str(path / "run"),
        }
    )
    file = write_settings(settings, path / "settings.json")
    process = subprocess.Popen(
        [sys.executable, "-m", "astraflow.dataflow.app", "--settings", str(file)],
        env={**os.environ, "PYTHONPATH": str(path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def url_of(path: Path, process: subprocess.Popen[str]) -> str:
    run_dir = RunDirectory(path / "run")
    while (announced := run_dir.endpoint("dataflow", process.pid)) is None:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    return announced.url


async def begin(path: Path, url: str, outcome: Outcome) -> tuple[Server, asyncio.Task[None], ScriptedTrainer]:
    """Add a scripted RaaS on a real socket and a trainer."""
    token = RunDirectory(path / "run").token()
    peer = ScriptedRaaS("r", token, lambda task, version: [outcome, 0.0 if outcome == 1.0 else outcome])
    server = Server(peer.app)
    serving = asyncio.create_task(server.serve())
    client = DataflowClient(url, token)
    request = m.RegisterRaaSRequest(uid="r", raas_url=server.url, capabilities={"models": ["model0"]})
    await client.register_raas(request)
    trainer = ScriptedTrainer(client, batch_size=4)
    await trainer.begin()
    return server, serving, trainer


def test_it_serves_over_a_socket_and_stops_on_sigterm(tmp_path: Path) -> None:
    async def body(url: str) -> None:
        server, serving, trainer = await begin(tmp_path, url, 1.0)
        for _ in range(3):
            assert (await trainer.train()).batch.lengths.size == 4
        await trainer._client.close()
        server.stop()
        await serving

    with program(tmp_path) as process:
        asyncio.run(asyncio.wait_for(body(url_of(tmp_path, process)), 60))
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "Dataflow has stopped" in log
    assert (tmp_path / "run" / "trajectories" / "step_000003.jsonl").exists()


def test_a_run_that_cannot_go_on_tells_its_trainer_and_exits_with_one(tmp_path: Path) -> None:
    async def body(url: str) -> None:
        server, serving, trainer = await begin(tmp_path, url, Failed("crash", "Traceback: boom"))
        with pytest.raises(PeerError, match="samples in a row had no reward; the first: crash"):
            await trainer.batch()
        await trainer._client.close()
        server.stop()
        await serving

    with program(tmp_path) as process:
        asyncio.run(asyncio.wait_for(body(url_of(tmp_path, process)), 60))
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the run stops: WorkflowError: 8 samples in a row" in log
    assert "Traceback: boom" in log


@pytest.mark.parametrize(
    ("dataset_fn", "message"),
    [
        ("my_rows:rowz", "module my_rows has no 'rowz', did you mean 'rows'?"),
        ("no_such_module:rows", "cannot be imported"),
    ],
)
def test_a_wrong_dataset_ends_it_with_one_line(tmp_path: Path, dataset_fn: str, message: str) -> None:
    with program(tmp_path, dataset_fn) as process:
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert message in log
    assert "Traceback" not in log
    assert RunDirectory(tmp_path / "run").endpoint("dataflow") is None


def test_rows_that_are_trained_on_and_scored_are_warned_of(
    make_settings: Callable[..., DataflowSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    (tmp_path / "shared_rows_case.py").write_text(DATASET, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    scored = {"dataset_fn": "shared_rows_case:rows", "n": 5, "eval_workflow": "w"}
    settings = make_settings(
        rollout_dataset={"dataset_fn": "shared_rows_case:rows", "n": 3},
        eval_workflows={"w": {"reward_fn": "a.b:c"}},
        eval_datasets={"e": scored},
    )
    create_service(settings, lambda url: RaaSClient(url, ""), None)
    assert "eval_datasets.e: 3 of 5 rows are trained on too; give evaluation a split" in caplog.text
