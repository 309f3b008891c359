"""`astraflow simulate`."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import typer

from astraflow.dataflow.simulation.explorer import FEW, SMALL, Exploration, by_chance, by_plan, explore
from astraflow.dataflow.simulation.report import described, measured, simulate
from astraflow.dataflow.simulation.scenario import LogNormal, Mishaps, Scenario
from astraflow.launch.summary import write_summary

LOOK_S = 2.0
"""Virtual seconds between two looks at whether anybody starves, in a large world."""

RESTARTS = (
    "late_raas", "early_raas", "twin_raas", "kill_trainer", "restore_trainer", "crash_dataflow", "slow_disk",
    "break_connections", "bad_request",
)  # fmt: skip
"""Mishaps that happen only where asked for: they are few in a run's life."""


def run(scenario: Scenario, latencies: Path | None, seed: int, json: Path | None) -> None:
    """Simulate one run; exit code 1 where an invariant does not hold."""
    _quiet()
    if latencies is not None:
        scenario = msgspec.structs.replace(scenario, latency=measured(latencies))
    report = simulate(scenario, seed)
    for line in described(report):
        typer.echo(line)
    if json is not None:
        write_summary(report, json)
    if report.violations:
        raise typer.Exit(1)


def explore_small(seconds: float, seed: int, mishaps: list[str], json: Path | None) -> None:
    """Explore many small worlds, half of the time by chance and half by plan; exit code 1 for a finding."""
    _quiet()
    small, few = (msgspec.structs.replace(s, mishaps=s.mishaps.only(mishaps)) if mishaps else s for s in (SMALL, FEW))
    found = {
        "by chance": explore(by_chance(small, first_seed=seed), seconds=seconds / 2),
        "by plan": explore(by_plan(few), seconds=seconds / 2),
    }
    for name, exploration in found.items():
        typer.echo(f"{name}: {_summary(exploration)}")
        for finding in exploration.findings[:10]:
            typer.echo(f"  {finding.choices}: at {finding.violation.at_s} s, {finding.violation.text}")
    if json is not None:
        write_summary(found, json)
    if any(exploration.findings for exploration in found.values()):
        raise typer.Exit(1)


def scenario_of(
    *,
    raas: int,
    concurrency: int,
    episodes: int,
    n_samples: int,
    batch_groups: int,
    policies: int,
    max_staleness: int,
    mean_s: float,
    sigma: float,
    step_s: float,
    slow_share: float,
    slow_factor: float,
    mishap_every_s: float,
    restarts: bool,
    mishaps: list[str],
) -> Scenario:
    """The scenario of the command's options; mishaps: only these, if any."""
    befalls = Mishaps(every_s=mishap_every_s, most=10**9, **dict.fromkeys(RESTARTS, int(restarts)))
    return Scenario(
        raas=raas,
        concurrency=concurrency,
        n_samples=n_samples,
        batch_groups=batch_groups,
        policies=policies,
        max_staleness=max_staleness,
        steps=max(1, round(episodes / (n_samples * batch_groups))),
        latency=LogNormal(mean_s, sigma),
        step_s=step_s,
        slow_share=slow_share,
        slow_factor=slow_factor,
        episode_timeout_s=20 * mean_s * max(1.0, slow_factor),
        mishaps=befalls.only(mishaps) if mishaps else befalls,
        look_s=LOOK_S,
        longest_s=1e6,
        rows=10_000,
    )


def _summary(found: Exploration) -> str:
    mishaps = ", ".join(f"{name} {n}" for name, n in sorted(found.mishaps.items()))
    return (
        f"{found.worlds:,} worlds, {found.events:,} events in {found.seconds:.0f} s; {mishaps or 'no mishaps'}; "
        f"{len(found.findings)} violations"
    )


def _quiet() -> None:
    # what befalls a simulated run is reported in sum, not as it happens
    logging.getLogger("astraflow.dataflow").setLevel(logging.CRITICAL + 1)
