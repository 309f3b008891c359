"""What is simulated."""

from __future__ import annotations

import random
from collections.abc import Collection
from math import log
from typing import Protocol

import msgspec

from astraflow.dataflow.replays import replay_count
from astraflow.errors import ConfigError


class Latency(Protocol):
    """How long one sample takes."""

    def seconds(self, chance: random.Random) -> float: ...


class LogNormal(msgspec.Struct, frozen=True, tag=True):
    """Most samples are short, some long."""

    mean_s: float = 10.0
    sigma: float = 0.8
    """Standard deviation of the logarithm."""

    def seconds(self, chance: random.Random) -> float:
        return chance.lognormvariate(log(self.mean_s) - self.sigma**2 / 2, self.sigma)


class Measured(msgspec.Struct, frozen=True, tag=True):
    """Durations that were measured, drawn with equal chance."""

    samples_s: tuple[float, ...]

    def seconds(self, chance: random.Random) -> float:
        return chance.choice(self.samples_s)


class Mishaps(msgspec.Struct, frozen=True, kw_only=True):
    """What may befall a world: at every `every_s`, one of these at most, each as likely as its weight says.

    Each is a function of its name in `mishaps`.
    """

    every_s: float = 0.0
    """0: nothing does."""
    most: int = 6
    """Then nothing more happens, and the world can come to its end."""
    none: int = 1
    kill_raas: int = 1
    silence_raas: int = 1
    mute_raas: int = 1
    late_raas: int = 0
    early_raas: int = 0
    twin_raas: int = 0
    join: int = 1
    leave: int = 1
    kill_trainer: int = 0
    restore_trainer: int = 0
    lose_trainer: int = 0
    crash_dataflow: int = 0
    restore_ledger: int = 0
    slow_disk: int = 0
    break_connections: int = 0
    bad_request: int = 0

    def kinds(self) -> list[str]:
        """Each as often as its weight; `none` first."""
        return [name for name in ("none", *self.names()) for _ in range(getattr(self, name))]

    @classmethod
    def names(cls) -> list[str]:
        """All that may befall a world."""
        return [name for name in cls.__struct_fields__ if name not in ("every_s", "most", "none")]

    def only(self, names: Collection[str]) -> Mishaps:
        """Return these mishaps alone, each as likely as the others. ConfigError for a name that is none."""
        unknown = sorted(set(names) - set(self.names()))
        if unknown:
            raise ConfigError(f"no mishap is called {', '.join(unknown)}; there are {', '.join(self.names())}")
        return msgspec.structs.replace(self, none=1, **{name: int(name in names) for name in self.names()})


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A world; the defaults are a small quiet one."""

    raas: int = 3
    concurrency: int = 2
    """Groups at once in each."""
    slow_share: float = 0.0
    """Part of the RaaS that are `slow_factor` times slower, in all they do."""
    slow_factor: float = 8.0
    policies: int = 1
    """Trained together: every episode gives each a trajectory."""
    barrier: str = "barrier"
    """With several: barrier or independent."""
    barrier_timeout_s: float = 60.0
    n_samples: int = 2
    batch_groups: int = 2
    max_staleness: int = 1
    steps: int = 4
    """Of each trainer; the world ends when all have made them."""
    step_s: float = 2.0
    checkpoint_steps: int = 2
    eval_steps: int = 0
    """Steps between two evaluations, the first at the start; 0: none."""
    eval_rows: int = 3
    eval_mode: str = "exclusive"
    """exclusive or concurrent."""
    latency: LogNormal | Measured = LogNormal(mean_s=1.0)
    episode_timeout_s: float = 8.0
    stuck_share: float = 0.0
    """Part of the samples that never end by themselves."""
    fail_share: float = 0.0
    solved_share: float = 0.5
    """Part of the samples with reward 1; groups whose rewards are equal are dropped."""
    pull_s: float = 0.2
    """Seconds to fetch a version and to serve it."""
    delays_s: tuple[float, ...] = (0.0005,)
    """Of a message: one is chosen for each. The first is usual."""
    commits_s: tuple[float, ...] = (0.0,)
    """Of a commit of the ledger."""
    rows: int = 50
    curated: bool = False
    """Prompts are chosen by their visits, and a prompt that waits for a batch is in it once."""
    order: str = "fifo"
    """Of a batch's groups: fifo or edf."""
    replay_ratio: float = 0.0
    """Share of a batch's groups that may have been trained before."""
    count: str = "groups"
    """What the bound and a batch count: groups or samples."""
    stale_policy: str = "drop"
    """What becomes of old tokens: drop or mask."""
    mishaps: Mishaps = Mishaps()
    replayable: bool = False
    """Keep what RaaS return, for a replay."""
    stop_after_s: float | None = None
    """Dataflow is told to stop then, whatever goes on."""
    longest_s: float = 3600.0
    """A world that has not come to its end by then is at a standstill."""
    look_s: float = 0.0
    """Seconds between two looks at waits and idleness; 0: whenever time passes."""

    def check(self) -> Scenario:
        """ConfigError names a field that makes no world."""
        for name in ("raas", "concurrency", "policies", "n_samples", "batch_groups", "steps", "rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("slow_share", "stuck_share", "fail_share", "solved_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be 0 to 1, got {getattr(self, name)}")
        if isinstance(self.latency, Measured) and not self.latency.samples_s:
            raise ConfigError("no durations were measured")
        return self

    @property
    def group_places(self) -> int:
        """Places of a batch that a group takes of which nothing is lost: one, or one for each sample."""
        return self.n_samples if self.count == "samples" else 1

    @property
    def batch_places(self) -> int:
        return self.batch_groups * self.group_places

    @property
    def replays(self) -> int:
        """Groups of a batch that may have been trained before."""
        return replay_count(self.batch_groups, self.replay_ratio)

    @property
    def models(self) -> list[str]:
        return [f"model{number}" for number in range(self.policies)]
