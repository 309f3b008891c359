"""What the service tells people: /status, /raas_pool, /metrics, and why a batch is slow to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from astraflow.core.observability.prometheus_text import exposition
from astraflow.core.protocol.messages import EvalResults
from astraflow.dataflow.books import Books
from astraflow.dataflow.data_serving import DataServing
from astraflow.dataflow.evaluation import Evaluation
from astraflow.dataflow.policies import Policies, Policy
from astraflow.dataflow.raas_pool import Health, Instance, RaaSPool
from astraflow.dataflow.scaling import Advisor
from astraflow.dataflow.statistics import RolloutStatistics, standing
from astraflow.dataflow.waiting import Waits

NAMED = 16
"""RaaS that an error names."""

REASON = 500
"""Characters of why one is not healthy, in an error that names several."""


@dataclass(frozen=True)
class StatusBoard:
    """Reads the stations; changes nothing."""

    policies: Policies
    pool: RaaSPool
    books: Books
    serving: DataServing
    evaluation: Evaluation
    statistics: RolloutStatistics
    waits: Waits
    max_staleness: int
    clock: Callable[[], float]
    advisor: Advisor

    def status(self, *, stopping: bool, error: str | None) -> dict[str, Any]:
        """Reply of GET /status; `live` is what a terminal view shows."""
        serving = bool(self.pool.serving)
        status = "starting" if self.policies.unannounced(self.books.absent) or not serving else "ready"
        return {
            "status": "draining" if stopping else status,
            "error": error,
            "eval_running": self.evaluation.running,
            "agents": {
                policy.model_id: {
                    "raas_ready": serving,
                    "trainer_ready": policy.ready is not None,
                    "started": policy.current is not None,
                    "version": policy.version,
                }
                for policy in self.policies.all
            },
            "raas_pool": self.raas_pool(),
            "waiting": self.waits.describe(),
            "live": self.live(self.policies.all[0]),
        }

    def raas_pool(self) -> dict[str, Any]:
        """Reply of GET /raas_pool."""
        epoch = time.time() - self.clock()
        newest = [policy.version for policy in self.policies.all]
        return {
            "size": len(self.pool.live),
            "version": min(newest, default=-1),
            "advice": msgspec.to_builtins(self.advisor.advise(len(self.pool.serving))),
            "instances": [
                i.describe(self.pool.model_ids, epoch, self.pool.speeds.seconds(i.key)) for i in self.pool.all
            ],
        }

    def metrics(self) -> str:
        """Reply of GET /metrics."""
        steps = {f"step/{policy.model_id}": float(policy.step) for policy in self.policies.all}
        return exposition(
            {**standing(self.books, self.pool, self.policies, self.advisor), **self.statistics.peek(), **steps}
        )

    def live(self, policy: Policy) -> dict[str, Any]:
        """Where a policy stands now. `reward` is absent before the first finished sample."""
        counters = self.books.ledger.counters
        last = self.evaluation.last
        recent = {**self.serving.last_stats(policy.model_id), **self.statistics.peek()}
        reward = {"reward": recent["rollout/reward_mean"]} if "rollout/reward_mean" in recent else {}
        return {
            "step": policy.step,
            "version": policy.version,
            **reward,
            "tokens_per_s": recent["rollout/tokens_per_s"],
            "staleness_max": recent.get("buffer/staleness_max"),
            "staleness_mean": recent.get("buffer/staleness_mean"),
            "staleness_bound": self.max_staleness,
            "in_flight": counters.in_flight,
            "ready": self.serving.ready(policy.model_id),
            "issued": counters.issued,
            "trained": counters.trained,
            "dropped": {reason.value: n for reason, n in counters.dropped.items()},
            "eval": None if last is None else _figures(last, policy.model_id),
            "eval_progress": self.evaluation.progress,
        }

    def lacking(self, model_id: str) -> str:
        """Why a model's groups may be slow to come."""
        pool = _named(self.pool.all)
        if self.evaluation.running and self.evaluation.exclusive:
            return f"an exclusive evaluation runs; RaaS: {pool}"
        if not self.pool.serving:
            return f"no RaaS serves the current verified version; RaaS: {pool or 'none has registered'}"
        return f"RaaS: {pool}; {self.books.refill(model_id).describe()}"


def _named(instances: Sequence[Instance]) -> str:
    """Some RaaS with what is wrong with them, the troubled ones first."""
    troubled_first = sorted(instances, key=lambda instance: instance.health is Health.HEALTHY)
    named = [
        f"{i.uid} {i.health}, {i.inflight} in flight{f' ({i.reason[:REASON]})' if i.reason else ''}"
        for i in troubled_first[:NAMED]
    ]
    return "; ".join([*named, *([f"and {len(instances) - NAMED} more"] if len(instances) > NAMED else [])])


def _figures(results: EvalResults, model_id: str) -> dict[str, Any]:
    return {
        "version": results.versions.get(model_id, results.version),
        "avg@k": results.overall_avg_at_k,
        "pass@k": results.overall_pass_at_k,
        "datasets": {
            name: {"avg@k": d.avg_at_k, "greedy": d.greedy, "k": d.k, "interval": d.avg_at_k_interval}
            for name, d in results.datasets.items()
        },
    }
