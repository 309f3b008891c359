"""A bank with a stable package, a finished run and a recorded round."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from astraflow.evolution.skillbank import Bank, write_skills
from astraflow.evolution.skillbank.packages import Draft, Entry, draft_stable, load_registry, make_package

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Workshop:
    """A bank on disk and what packages are made from."""

    def __init__(self, files: Any) -> None:
        self.files = files
        self.repository: Path = files.repository

    @property
    def bank(self) -> Bank:
        """The bank as it is now."""
        return self.files.load()

    @property
    def registry(self) -> Any:
        """The registry as it is now."""
        return load_registry(self.bank)

    def make(self, draft: Draft, dry_run: bool = False) -> Entry:
        """Make a package at a fixed time."""
        return make_package(self.bank, draft, NOW, dry_run)

    def run(self, name: str = "run_1", **config: Any) -> Path:
        """A finished run of rllm_train."""
        folder = self.repository / "rllm_train" / "output" / "runs" / name
        (folder / "trajectories").mkdir(parents=True)
        (folder / "final_model").mkdir()
        (folder / "config.json").write_text(json.dumps({"task": "math", **config}))
        (folder / "training_log.txt").write_text("Training Report\n")
        (folder / "trajectories" / "step_0001.jsonl").write_text("{}\n")
        (folder / "eval_metrics.json").write_text(json.dumps({"accuracy": 0.75}))
        (folder / "final_model" / "model.safetensors").write_bytes(b"weights")
        (folder / "token").write_text("secret")
        return folder

    def round(self, number: int, session: str = "s1") -> None:
        """A complete round of traj_opt."""
        traces = self.repository / "traj_opt" / "output"
        for name, text in (
            (f"rounds/round_{number}/status.json", json.dumps({"round": number, "status": "training_complete"})),
            (f"rounds/round_{number}/heartbeat.json", "{}"),
            (f"rllm/raw/{session}/events.jsonl", json.dumps({"round": number}) + '\n{"torn'),
            (f"rllm/trajectories/{session}/trajectories.jsonl", "{}\n"),
            (f"rllm/reports/rllm_round_{number}.md", "# Report\n"),
        ):
            (traces / name).parent.mkdir(parents=True, exist_ok=True)
            (traces / name).write_text(text)


@pytest.fixture
def workshop(make_bank: Callable[..., Any]) -> Workshop:
    """Compiled skills of both groups, frozen as stable:base."""
    files = make_bank({"rllm-run": [], "rllm-train": []})
    files.skill("traj-loop", group="traj")
    made = Workshop(files)
    write_skills(made.bank, list(made.bank.skills))
    made.make(draft_stable(made.bank, "base"))
    return made
