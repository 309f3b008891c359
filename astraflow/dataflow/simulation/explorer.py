"""Many small worlds, each another interleaving: by chance, and systematically.

By chance: world n takes every delay and every mishap from seed n, and how it is configured; one in four is told to stop
in the middle.
Systematically: first the world in which nothing is late and nothing goes wrong, then every world that deviates from it
in one choice, then in two: each single late message, each single mishap at each moment.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import msgspec

from astraflow.dataflow.simulation.checks import Violation
from astraflow.dataflow.simulation.choices import ByChance, ByPlan
from astraflow.dataflow.simulation.scenario import Mishaps, Scenario
from astraflow.dataflow.simulation.world import World
from astraflow.errors import InvariantError

SMALL = Scenario(
    delays_s=(0.001, 0.02, 0.3),
    commits_s=(0.0, 0.05),
    look_s=0.02,
    slow_share=0.3,
    stuck_share=0.02,
    fail_share=0.02,
    mishaps=Mishaps(
        every_s=1.0,
        none=3,
        late_raas=1,
        early_raas=1,
        twin_raas=1,
        kill_trainer=1,
        restore_trainer=1,
        lose_trainer=1,
        crash_dataflow=1,
        restore_ledger=1,
        slow_disk=1,
        break_connections=1,
        bad_request=1,
    ),
)
"""A world in which everything can go wrong, within a minute or two of virtual time."""

FEW = msgspec.structs.replace(SMALL, raas=2, steps=2, stuck_share=0.0, fail_share=0.0, policies=2)
"""A world with few choices, for plans."""


class Finding(msgspec.Struct, frozen=True):
    """A violation, and how to see it again."""

    choices: str
    scenario: Scenario
    violation: Violation


class Exploration(msgspec.Struct):
    """What was explored."""

    worlds: int = 0
    events: int = 0
    mishaps: Counter[str] = msgspec.field(default_factory=Counter)
    findings: list[Finding] = []
    seconds: float = 0.0


def by_chance(scenario: Scenario = SMALL, first_seed: int = 0) -> Iterator[World]:
    """Endless worlds, each with policies, evaluations and a buffer that its seed draws."""
    seed = first_seed
    while True:
        yield World(drawn(scenario, seed), ByChance(seed), seed)
        seed += 1


def drawn(scenario: Scenario, seed: int) -> Scenario:
    """One of all ways to configure a scenario: the usual one in each respect more often than the others."""
    chance = random.Random(f"scenario {seed}")
    max_staleness = chance.choice((scenario.max_staleness, scenario.max_staleness, scenario.max_staleness + 1, 0))
    by_samples = chance.random() < 1 / 3
    return msgspec.structs.replace(
        scenario,
        policies=1 + seed % 3,
        barrier=chance.choice(("barrier", "barrier", "barrier", "barrier", "independent")),
        eval_steps=chance.choice((0, 0, 0, 0, 0, 2, 2)),
        eval_mode=chance.choice(("exclusive", "concurrent")),
        stop_after_s=2.0 + chance.randrange(11) if seed % 4 == 3 else None,
        max_staleness=max_staleness,
        curated=scenario.curated or chance.random() < 1 / 4,
        order=chance.choice(("fifo", "fifo", "edf")),
        replay_ratio=chance.choice((scenario.replay_ratio, 0.5)) if max_staleness else 0.0,
        stale_policy=chance.choice(("drop", "drop", "mask")),
        # groups that lose a sample now and then, and still train
        count="samples" if by_samples else "groups",
        n_samples=max(4, scenario.n_samples) if by_samples else scenario.n_samples,
        fail_share=max(0.1, scenario.fail_share) if by_samples else scenario.fail_share,
    )


def by_plan(scenario: Scenario = FEW) -> Iterator[World]:
    """All worlds with no, then with one, then with two deviations. Each must have run before the next is asked for."""
    plans: list[dict[int, int]] = [{}]
    for _ in range(3):
        following: list[dict[int, int]] = []
        for plan in plans:
            choices = ByPlan(plan)
            yield World(scenario, choices)
            after = max(plan, default=-1) + 1
            following += [
                {**plan, position: choice}
                for position in range(after, len(choices.options))
                for choice in range(1, choices.options[position])
            ]
        plans = following


def explore(
    worlds: Iterator[World], *, most: int = 10**9, seconds: float = 1e9, stop_at_first: bool = False
) -> Exploration:
    """Run worlds until enough are done; a broken invariant inside one is a finding too."""
    found = Exploration()
    began = time.perf_counter()
    for world in worlds:
        try:
            world.run()
        except InvariantError as error:
            world.wrong("invariant", str(error))
        found.worlds += 1
        found.events += world.events
        found.mishaps.update(kind for _, kind in world.mishaps)
        found.findings += [Finding(world.choices.name, world.scenario, violation) for violation in world.violations]
        found.seconds = time.perf_counter() - began
        if found.worlds >= most or found.seconds >= seconds or (stop_at_first and found.findings):
            break
    return found
