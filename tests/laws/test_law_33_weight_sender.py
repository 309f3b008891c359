"""LAW 33. Ports are bound, then announced: nothing picks a port and binds it later. Children die with their parent;
nothing outlives a run. Here: the weight sender agent.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PARENT = """
import signal, sys, time
import torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
from astraflow.core.weight_manager import WeightManager
manager = WeightManager("model0", "secret")
params = {"w": torch.zeros(1000)}
manager.initialize(params)
manager.offload(params, 0)
manager.manifest(0)
print(manager.agent_pid, manager.get_sender_endpoint(), flush=True)
sys.stdin.read()
"""
DEADLINE_S = 60.0


class Run:
    """A trainer in a process of its own, with its agent."""

    def __init__(self) -> None:
        self.shm = set(os.listdir("/dev/shm"))
        self.trainer = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.trainer.stdout is not None
        pid, endpoint = self.trainer.stdout.readline().split()
        self.agent_pid = int(pid)
        self.agent = os.pidfd_open(self.agent_pid)
        self.port = int(endpoint.rpartition(":")[2])

    def agent_ended(self, within: float = DEADLINE_S) -> bool:
        return bool(select.select([self.agent], [], [], within)[0])

    def is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    yield run
    run.trainer.kill()
    run.trainer.communicate()
    os.close(run.agent)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_trainer_dies(run: Run, how: signal.Signals) -> None:
    assert run.is_listening()  # announced, so bound
    run.trainer.send_signal(how)
    run.trainer.wait(DEADLINE_S)
    assert run.agent_ended()
    assert not run.is_listening()
    assert set(os.listdir("/dev/shm")) == run.shm
    assert run.trainer.stderr is not None
    assert "resource_tracker" not in run.trainer.stderr.read()


def test_an_interrupt_leaves_the_decision_to_the_trainer(run: Run) -> None:
    """Ctrl-C in a terminal reaches every process of it."""
    os.kill(run.agent_pid, signal.SIGINT)
    assert not run.agent_ended(0.2)
    assert run.is_listening()
    run.trainer.kill()
    assert run.agent_ended()


def test_its_token_is_in_no_process_list(run: Run) -> None:
    assert "secret" not in Path(f"/proc/{run.agent_pid}/cmdline").read_text("utf-8")
    assert "secret" not in Path(f"/proc/{run.agent_pid}/environ").read_text("utf-8")
