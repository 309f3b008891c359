"""What Dataflow tells about rollouts: `buffer_stats` of a batch, /metrics and the live view."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection

from astraflow.core.data import Failed, Invalid, Value
from astraflow.core.data.trajectory import GroupResult
from astraflow.dataflow.books import Books
from astraflow.dataflow.curation import word
from astraflow.dataflow.ledger import DropReason, State
from astraflow.dataflow.policies import Policies
from astraflow.dataflow.raas_pool import Health, RaaSPool
from astraflow.dataflow.scaling import Advisor, number

RATE_WINDOW_S = 20.0
"""Seconds over which tokens/s are averaged."""

WORDS = 64
"""Names of one kind (reasons, parts of a reward) that are counted apart; they come from workflows, and may be any."""

OTHER = "other"
"""What all further names count as."""


class RolloutStatistics:
    """All finished samples since the last batch, whatever became of their groups: what a reward curve should show."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_tokens = 0
        self._reset()

    def _reset(self) -> None:
        self._rewards = 0.0
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._samples = 0
        self._tokens = 0
        self._trajectories = 0
        self._groups = 0
        """That were measured."""
        self._seconds = 0.0
        self._stops: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()

    def finished(self, result: GroupResult, seconds: float | None) -> None:
        """An occurrence ended, `seconds` after it was leased; None: not measured."""
        before = self._tokens
        if seconds is not None:
            self._groups += 1
            self._seconds += seconds
        for episode in result.episodes:
            if isinstance(episode, Failed):
                self._lost[_known(word(episode.reason), self._lost)] += 1
                continue
            values = [t.reward for t in episode.trajectories if isinstance(t.reward, Value)]
            reasons = [t.reward.reason for t in episode.trajectories if isinstance(t.reward, Invalid)]
            if values:
                self._samples += 1
                self._rewards += episode.reward or 0.0
                for part, value in values[-1].parts.items():
                    self._parts[_known(part, self._parts)] += value
            elif reasons:
                self._lost[_known(word(reasons[0]), self._lost)] += 1
            for t in episode.trajectories:
                self._trajectories += 1
                self._tokens += t.sampled
                self._stops[t.stop.value] += 1
        self._recent.append((self._clock(), self._tokens - before))
        self._recent_tokens += self._tokens - before

    def tokens_per_s(self) -> float:
        """Sampled tokens of groups that finished in the last seconds, per second."""
        now = self._clock()
        while self._recent and self._recent[0][0] < now - RATE_WINDOW_S:
            self._recent_tokens -= self._recent.popleft()[1]
        if not self._recent:
            return 0.0
        return self._recent_tokens / max(now - self._recent[0][0], 1.0)

    def take(self) -> dict[str, float]:
        """The figures since the last call."""
        stats = {**self.peek(), **{f"stop/{reason}": float(n) for reason, n in self._stops.items()}}
        stats |= {f"rollout/lost/{reason}": float(n) for reason, n in self._lost.items()}
        stats |= {f"rollout/reward/{part}": total / self._samples for part, total in self._parts.items()}
        if self._groups:
            stats["timeperf/group_s"] = self._seconds / self._groups
        self._reset()
        return stats

    def peek(self) -> dict[str, float]:
        """The main figures since the last batch; means are absent where nothing finished."""
        stats = {
            "rollout/samples": float(self._samples),
            "rollout/tokens": float(self._tokens),
            "rollout/tokens_per_s": self.tokens_per_s(),
        }
        if self._samples:
            stats["rollout/reward_mean"] = self._rewards / self._samples
        if self._trajectories:
            stats["rollout/length_mean"] = self._tokens / self._trajectories
        return stats


def _known(name: str, counted: Collection[str]) -> str:
    """The name that something is counted under: its own while there are few."""
    return name if name in counted or len(counted) < WORDS else OTHER


def standing(books: Books, pool: RaaSPool, policies: Policies, advisor: Advisor) -> dict[str, float]:
    """Where everything stands now: acquisition, pool, drops."""
    counters = books.ledger.counters
    serving = pool.serving
    admissions = books.admissions.values()
    lags = [
        newest.step - i.verified[newest.model_id].step
        for newest in (pool.versions.newest(policy.model_id) for policy in policies.all)
        if newest is not None
        for i in serving
    ]
    return {
        "acquisition/running": float(counters.states[State.QUEUED] + counters.states[State.LEASED]),
        "acquisition/queued": float(counters.states[State.QUEUED]),
        "acquisition/accepted": float(max((a.accepted for a in admissions), default=0)),
        "acquisition/capacity": float(books.capacity(pool.max_concurrency)),
        "acquisition/issued": float(counters.issued),
        "acquisition/trained": float(counters.trained),
        "acquisition/in_flight": float(counters.in_flight),
        "acquisition/orphans": float(counters.orphans),
        "acquisition/replayed": float(counters.replayed),
        "acquisition/lost_leases": float(counters.lost_leases),
        "raas/size": float(len(pool.live)),
        "raas/serving": float(len(serving)),
        "raas/quarantined": float(sum(i.health is Health.QUARANTINED for i in pool.live)),
        "raas/inflight": float(sum(i.inflight for i in pool.live)),
        "raas/max_concurrency": float(pool.max_concurrency),
        "raas/advice": number(advisor.advise(len(serving))),
        "raas/step_lag_max": float(max(lags, default=0)),
        **{f"dropped/{reason.value}": float(counters.dropped[reason]) for reason in DropReason},
    }
