"""The main job for real: separate processes, the wire, verified weights in flight, and a model that learns.

Gated on the sampled reward, which moves steadily; greedy accuracy jumps.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.core.model import load_model

STOP_WITHIN_S = 10.0
"""On a machine of its own."""

Launch = Callable[..., subprocess.Popen[str]]
Follow = Callable[[subprocess.Popen[str], str], list[str]]

pytestmark = pytest.mark.system


def processes_of(run_dir: Path) -> dict[int, str]:
    """pid → command line of every process that was given something in this run directory, the launcher left out."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"{run_dir}/settings" in command:
            found[int(entry.parent.name)] = command
    return found


def test_the_model_learns_by_the_whole_system(launch: Launch, follow: Follow, tmp_path: Path) -> None:
    steps = 30
    process = launch(tmp_path / "run", f"trainer_base.total_train_steps={steps}")
    lines = follow(process, "step 10/")
    pids = processes_of(tmp_path / "run")
    rest, _ = process.communicate(timeout=240)
    assert process.returncode == 0, "".join(lines) + rest

    assert len(pids) >= 3, "dataflow, RaaS and train worker are processes of their own"
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [r for r in records if r["step"] >= 1 and "rollout/reward_mean" in r]
    sampled = [r["rollout/reward_mean"] for r in trained]
    assert sum(sampled[-5:]) / 5 - sum(sampled[:3]) / 3 > 0.2
    assert max(r["ratio/current_version_max_dev"] for r in trained if "ratio/current_version_max_dev" in r) < 1e-3

    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["accuracy_after"]["sampled"] - summary["accuracy_before"]["sampled"] > 0.2
    assert summary["accuracy_after"]["greedy"] - summary["accuracy_before"]["greedy"] > 0.25
    assert 0.2 < summary["accuracy_before"]["greedy"] < 0.5
    assert 1 <= summary["max_trained_staleness"] <= summary["staleness_bound"]
    assert summary["trajectories_with_two_versions"] >= 1
    assert (summary["rl_steps"], summary["weight_updates"], summary["eval_count"]) == (steps, steps, 200)

    decoder, _ = load_model(tmp_path / "run" / "checkpoints" / f"step_{steps:06d}")
    assert all(parameter.isfinite().all() for parameter in decoder.parameters())
    assert processes_of(tmp_path / "run") == {}


def stop_within_s() -> float:
    """STOP_WITHIN_S, longer by as much as others use the machine."""
    return STOP_WITHIN_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.parametrize(
    ("victim", "order", "exit_code"),
    [
        ("raas-0.json", signal.SIGKILL, 1),
        ("train_worker-model0.json", signal.SIGKILL, 1),
        ("", signal.SIGINT, 130),
    ],
    ids=["raas", "trainer", "ctrl-c"],
)
def test_a_death_or_ctrl_c_in_the_middle_ends_everything(
    launch: Launch,
    follow: Follow,
    small_run: tuple[str, ...],
    tmp_path: Path,
    victim: str,
    order: signal.Signals,
    exit_code: int,
) -> None:
    process = launch(tmp_path / "run", "trainer_base.total_train_steps=5000", *small_run)
    lines = follow(process, "step 3/")
    pids = processes_of(tmp_path / "run")
    targets = [pid for pid, command in pids.items() if victim and victim in command] or [process.pid]
    began = time.monotonic()
    os.kill(targets[0], order)
    rest, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < stop_within_s()
    assert process.returncode == exit_code, "".join(lines) + rest
    if victim:
        assert f"{victim.removesuffix('.json')} (pid {targets[0]}) ended: killed by SIGKILL" in rest
    assert processes_of(tmp_path / "run") == {}
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert list((tmp_path / "run" / "endpoints").iterdir()) == []


def test_nothing_outlives_a_launcher_that_is_killed(
    launch: Launch, follow: Follow, small_run: tuple[str, ...], tmp_path: Path
) -> None:
    process = launch(tmp_path / "run", "trainer_base.total_train_steps=5000", *small_run)
    follow(process, "step 3/")
    waits = [os.pidfd_open(pid) for pid in processes_of(tmp_path / "run")]
    process.kill()
    process.communicate(timeout=stop_within_s())
    deadline = time.monotonic() + stop_within_s()
    for descriptor in waits:
        readable, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
        assert readable, "a pidfd is readable once its process has ended"
        os.close(descriptor)
    assert processes_of(tmp_path / "run") == {}
