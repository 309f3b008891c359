"""The program: it binds, announces, registers, serves, stops in order."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from astraflow.core.config import ExperimentConfig, write_settings
from astraflow.core.data import GenerationHyperparameters
from astraflow.core.observability import log
from astraflow.core.observability.lifeline import spawn
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import Endpoint, RaaSClient, Server, build_app
from astraflow.core.protocol import messages as m
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.core.weight_manager import WeightManager
from astraflow.raas import app
from astraflow.raas.config import RaaSConfig, RaaSModelConfig, RaaSSettings, RolloutConfig

GCONFIG = GenerationHyperparameters(n_samples=2, max_new_tokens=64)


def settings(path: Path, *urls: str) -> RaaSSettings:
    tiny_tokenizer().save(path / "model")
    save_file({"w": np.zeros((2, 3), np.float32)}, path / "model" / "model.safetensors")
    return RaaSSettings(
        experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(path)),
        raas=RaaSConfig(models={"model0": RaaSModelConfig(backend="scripted", gconfig=GCONFIG)}),
        rollout=RolloutConfig(reward_workers=0),
        model_paths={"model0": str(path / "model")},
        tokenizer_path=str(path / "model"),
        dataflow_urls=list(urls),
        uid="raas-0",
        run_dir=str(path),
    )


class FakeDataflow:
    """Notes who registers, and can be waited for."""

    def __init__(self, token: str) -> None:
        self.registered: asyncio.Queue[m.RegisterRaaSRequest] = asyncio.Queue()
        self.deregistered: list[str] = []
        self.refuse = False
        endpoints = [
            Endpoint("POST", "/register_raas", m.RegisterRaaSRequest, self.register),
            Endpoint("POST", "/deregister_raas", m.DeregisterRaaSRequest, self.deregister),
        ]
        self.server = Server(build_app("dataflow", token, endpoints))

    async def register(self, request: m.RegisterRaaSRequest) -> m.RegisterRaaSReply:
        self.registered.put_nowait(request)
        return m.RegisterRaaSReply(uid=request.uid, pool_size=1)

    async def deregister(self, request: m.DeregisterRaaSRequest) -> m.RegisterRaaSReply:
        self.deregistered.append(request.uid)
        return m.RegisterRaaSReply(uid=request.uid, pool_size=0)


def serve(path: Path, body: Callable[[RaaSClient, FakeDataflow], Awaitable[None]]) -> tuple[int, FakeDataflow]:
    """Run the program in this process beside a Dataflow, then the body, then /shutdown."""

    async def main() -> tuple[int, FakeDataflow]:
        token = RunDirectory(path).token()
        dataflow = FakeDataflow(token)
        serving = asyncio.create_task(dataflow.server.serve())
        program = asyncio.create_task(app.run(settings(path, dataflow.server.url)))
        async with asyncio.timeout(120):
            first = await dataflow.registered.get()
            client = RaaSClient(first.raas_url, token)
            await body(client, dataflow)
            await client.shutdown()
            status = await program
        await client.close()
        dataflow.server.stop()
        await serving
        return status, dataflow

    return asyncio.run(main())


def test_it_registers_again_and_again_and_leaves_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "HEARTBEAT", 0.01)
    seen: list[m.RegisterRaaSRequest] = []

    async def body(client: RaaSClient, dataflow: FakeDataflow) -> None:
        seen.extend([await dataflow.registered.get(), await dataflow.registered.get()])
        assert (await client.status()).status == "starting"

    status, dataflow = serve(tmp_path, body)
    assert status == 0
    assert dataflow.deregistered == ["raas-0"]
    assert seen[0] == seen[1], "one incarnation"
    assert seen[0].capabilities["max_concurrency"] == 64
    assert seen[0].capabilities["models"] == ["model0"]
    announced = RunDirectory(tmp_path).endpoint("raas-0")
    assert announced is not None
    assert announced.url == seen[0].raas_url


def test_it_pulls_a_real_version_and_answers_under_it(tmp_path: Path) -> None:
    async def body(client: RaaSClient, dataflow: FakeDataflow) -> None:
        request = m.RaaSNotifyVersionRequest(
            model_id="model0", version=4, sender_endpoint=manager.get_sender_endpoint(), manifest=manager.manifest(4)
        )
        result = await client.notify_version(request)
        assert (result.pulled, result.version, result.pull_result["bytes"]) == (True, 4, manager.manifest(4).nbytes)
        without_manifest = m.RaaSNotifyVersionRequest(
            model_id="model0", version=4, sender_endpoint=manager.get_sender_endpoint()
        )
        assert (await client.notify_version(without_manifest)).reason == "version=4 <= local=4"
        state = (await client.status()).versions["model0"]
        assert (state.number, state.digest) == (4, manager.manifest(4).digest)
        await client.register_workflow(
            m.RegisterWorkflowRequest(workflow_id="default", workflow_cls="rlvr", reward_fn="is_right")
        )
        row = {"messages": [{"role": "user", "content": "1"}], "answer": "2"}
        await client.submit(m.SubmitRequest(tasks=[m.Task(task_id="t", group_id=1, data=row)]))
        (item,) = await client.pull(m.PullRequest(timeout=60))
        assert item.result is not None
        assert len(item.result.episodes) == 2

    params = {"w": torch.ones(2, 3)}
    with WeightManager("model0", RunDirectory(tmp_path).token()) as manager:
        manager.initialize(params)
        manager.offload(params, 4)
        assert serve(tmp_path, body)[0] == 0


def start(path: Path) -> tuple[RunDirectory, Path]:
    run_dir = RunDirectory(path)
    return run_dir, write_settings(settings(path), run_dir.settings("raas-0"))


@pytest.mark.system
def test_sigterm_ends_it_with_status_0_and_no_torch_was_loaded(tmp_path: Path) -> None:
    run_dir, file = start(tmp_path)
    code = (
        "import sys\nfrom astraflow.raas.app import main\n"
        f"status = main(['--settings', {str(file)!r}])\nprint('torch' in sys.modules)\nsys.exit(status)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    wait_for(lambda: run_dir.endpoint("raas-0") is not None)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, b"False\n")


@pytest.mark.system
def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    run_dir, file = start(tmp_path)
    child = spawn([sys.executable, "-m", "astraflow.raas.app", "--settings", str(file)], run_dir.log("raas-0"))
    wait_for(lambda: run_dir.endpoint("raas-0") is not None)
    assert child._process.stdin is not None
    child._process.stdin.close()  # what the kernel does when the parent ends
    assert child.wait(60) == 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_tokenizer_that_cannot_be_read_is_one_line_and_exit_code_1(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "configure", lambda: None)
    written = settings(tmp_path)
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    run_dir = RunDirectory(tmp_path)
    assert app.main(["--settings", str(write_settings(written, run_dir.settings("raas-0")))]) == 1
    assert "ConfigError: tokenizer.json" in caplog.records[-1].message
