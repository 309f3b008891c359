"""What a simulated run was like."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.sinks.jsonl import JsonlReader
from astraflow.dataflow.simulation.checks import Violation
from astraflow.dataflow.simulation.choices import ByChance
from astraflow.dataflow.simulation.scenario import Measured, Scenario
from astraflow.dataflow.simulation.world import World
from astraflow.errors import ConfigError, DataError, boundary

MOST_SHOWN = 100
"""Violations that a report lists."""


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run in virtual time."""

    scenario: Scenario
    seed: int
    virtual_s: float
    wall_s: float
    events: int
    """Messages, and records of the ledger."""
    episodes: int
    """Samples that ended at a RaaS."""
    episodes_per_s: float
    """Of virtual time."""
    trained_groups: int
    trained_episodes_per_s: float
    """Samples that trainers used, per second of virtual time and policy."""
    staleness: dict[int, float]
    """Steps → share of the trained tokens that were so old."""
    staleness_mean: float
    staleness_max: int
    drop_shares: dict[str, float]
    """Reason → share of all groups that ended."""
    raas_busy_share: float
    """Part of all places, over their lives, at which a group ran."""
    trainer_wait_share: float
    """Part of the time that trainers waited for a batch."""
    lost_leases: int
    orphans: int
    """Results that came from somebody who held no lease any more, and were ignored."""
    mishaps: dict[str, int]
    violations: int
    first_violations: list[Violation]


def simulate(scenario: Scenario, seed: int) -> SimulationReport:
    """Run a world to its end and sum it up. ConfigError for a scenario that makes no world."""
    began = time.perf_counter()
    with _seldom_collected():
        world = World(scenario, ByChance(seed), seed)
        world.run()
        return summed_up(world, seed, time.perf_counter() - began)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """A world's many tasks and records live long: looking through them for garbage would take most of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def summed_up(world: World, seed: int, wall_s: float) -> SimulationReport:
    """The report of a world that has ended."""
    virtual = world.ended_s
    raas = [*world.raas.values(), *world.past_raas]
    ages: Counter[int] = Counter()
    for trainer in world.trainers:
        ages.update(trainer.ages)
    tokens = ages.total()
    audit = world.checks.auditor.report()
    ended = audit.trained + sum(audit.dropped.values())
    episodes = sum(r.samples for r in raas)
    places = sum(r.concurrency * r.alive_s(virtual) for r in raas)
    return SimulationReport(
        scenario=world.scenario,
        seed=seed,
        virtual_s=round(virtual, 1),
        wall_s=round(wall_s, 1),
        events=world.events,
        episodes=episodes,
        episodes_per_s=round(episodes / virtual, 2),
        trained_groups=audit.trained,
        trained_episodes_per_s=round(sum(t.episodes for t in world.trainers) / len(world.trainers) / virtual, 2),
        staleness={age: round(n / tokens, 4) for age, n in sorted(ages.items())},
        staleness_mean=round(sum(age * n for age, n in ages.items()) / tokens, 3) if tokens else 0.0,
        staleness_max=max(ages, default=0),
        drop_shares={reason: round(n / ended, 4) for reason, n in audit.dropped.items()},
        raas_busy_share=round(sum(r.busy_s for r in raas) / places, 3) if places else 0.0,
        trainer_wait_share=round(sum(t.waited_s for t in world.trainers) / len(world.trainers) / virtual, 3),
        lost_leases=audit.lost_leases,
        orphans=audit.orphans,
        mishaps=dict(Counter(kind for _, kind in world.mishaps)),
        violations=len(world.violations),
        first_violations=world.violations[:MOST_SHOWN],
    )


def measured(path: Path) -> Measured:
    """Durations of groups from a run directory's metrics, or from a file with a number of seconds a line.

    ConfigError where it is neither; DataError where there are none.
    """
    if path.is_dir():
        metrics = RunDirectory.existing(path).metrics
        with boundary(DataError, str(metrics)):
            seconds = [float(r["timeperf/group_s"]) for r in JsonlReader(metrics).read() if r.get("timeperf/group_s")]
    else:
        expected = "expected a run directory, or a file with seconds, one a line"
        try:
            seconds = [float(line) for line in path.read_text("utf-8").split()]
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}: {expected}") from error
        except ValueError as error:
            raise DataError(f"{path}: {error}: {expected}") from error
    if not seconds or min(seconds) <= 0:
        raise DataError(f"{path} holds no durations above 0")
    return Measured(tuple(seconds))


def described(report: SimulationReport) -> list[str]:
    """The report for people."""
    speed = report.virtual_s / report.wall_s if report.wall_s else 0.0
    lines = [
        f"{report.virtual_s:,.0f} s of virtual time in {report.wall_s:,.1f} s ({speed:,.0f} times as fast), "
        f"{report.events:,} events, seed {report.seed}",
        f"{report.episodes:,} episodes, {report.episodes_per_s:,.1f}/s; "
        f"trained {report.trained_groups:,} groups, {report.trained_episodes_per_s:,.1f} episodes/s a policy",
        f"staleness mean {report.staleness_mean:.2f}, most {report.staleness_max} "
        f"(bound {report.scenario.max_staleness}): {_shares(report.staleness)}",
        f"dropped: {_shares(report.drop_shares)}",
        f"RaaS busy {report.raas_busy_share:.1%}; trainers waited {report.trainer_wait_share:.1%} of the time",
        f"mishaps: {', '.join(f'{name} {n}' for name, n in report.mishaps.items()) or 'none'}; "
        f"lost leases {report.lost_leases:,}, results without a lease {report.orphans:,}",
        f"violations: {report.violations}",
    ]
    return lines + [f"  at {v.at_s:.1f} s, {v.kind}: {v.text}" for v in report.first_violations]


def _shares(shares: dict[Any, float]) -> str:
    return ", ".join(f"{name} {share:.2%}" for name, share in shares.items()) or "none"
