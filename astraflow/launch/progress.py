"""How far a run is: the state that views show, fed by metric records and Dataflow's live counters. No IO, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astraflow.launch import metrics
from astraflow.launch.metrics import Accuracy, Record


@dataclass
class Progress:
    """Steps done, and the newest value of what is shown."""

    total_steps: int
    staleness_bound: int
    step: int = 0
    version: int = 0
    reward: float | None = None
    """Mean over finished samples."""
    staleness: float | None = None
    rollout_tokens_per_s: float | None = None
    train_tokens_per_s: float | None = None
    evaluations: list[tuple[int, Accuracy]] = field(default_factory=list)
    """(step, accuracy) of each evaluation so far."""
    activity: str = "starting"
    _first_step_at: float | None = None
    _last_step_at: float | None = None

    def take(self, record: Record) -> None:
        """A line of metrics.jsonl."""
        self.step = int(record["step"])
        self.version = int(record.get(metrics.VERSION, self.step))
        self.reward = record.get(metrics.REWARD, self.reward)
        self.staleness = record.get(metrics.STALENESS_MAX, self.staleness)
        self.rollout_tokens_per_s = record.get(metrics.ROLLOUT_TOKENS_PER_S, self.rollout_tokens_per_s)
        self.train_tokens_per_s = record.get(metrics.TRAIN_TOKENS_PER_S, self.train_tokens_per_s)
        found = metrics.accuracy(record)
        if found is not None:
            self.evaluations.append((self.step, found))
        if self.step >= 1:
            self._first_step_at = self._first_step_at or record["time"]
            self._last_step_at = record["time"]

    def take_status(self, status: Mapping[str, Any]) -> None:
        """Dataflow's GET /status."""
        live = status.get("live") or {}
        self.reward = live.get("reward", self.reward)
        self.rollout_tokens_per_s = live.get("tokens_per_s", self.rollout_tokens_per_s)
        if status.get("eval_running"):
            done = live.get("eval_progress") or {}
            self.activity = "evaluating" + (
                f" {done['done']}/{done['total']}" if {"done", "total"} <= set(done) else ""
            )
        elif status:
            self.activity = "training" if self.step else str(status.get("status", "starting"))

    @property
    def pace_s(self) -> float | None:
        """Mean seconds a step so far; None before the second step."""
        if self._first_step_at is None or self._last_step_at is None or self.step < 2:
            return None
        return (self._last_step_at - self._first_step_at) / (self.step - 1)

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last step at the pace so far; None before the second step."""
        return None if self.pace_s is None else self.pace_s * max(self.total_steps - self.step, 0)
