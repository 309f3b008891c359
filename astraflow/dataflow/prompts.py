"""What is known of each prompt from its visits, and how willingly it is asked for again.

A visit is one rollout of the prompt that ended. Each rule turns a prompt's record into a probability; a pass over the
dataset asks for the prompt with their product. Plain state: a fold over visits, so the ledger's log restores it.

    greso        p^z after z visits in a row without variance, not below a floor for each kind (arXiv 2506.02177)
    solved       0 after so many visits in a row in which every sample was right, for some passes or for good
    difficulty   the rate of the pool, easy, medium or hard, that its smoothed success rate puts it in
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from astraflow.core.data import Group
from astraflow.dataflow.config import CurriculumConfig, DifficultyConfig, GresoConfig
from astraflow.dataflow.ledger_events import Visit

NEVER, ALWAYS = -1, 2**62
"""Passes before the first, and after the last."""


class Kind(StrEnum):
    """What a visit without variance was like."""

    EASY = "easy"
    """Every sample was right."""
    HARD = "hard"
    """None was better than another, and they were not right."""


class Pool(StrEnum):
    """Where a prompt's success rate puts it."""

    EASY = "easy"
    MEDIUM = "medium"
    """Also a prompt that was never visited."""
    HARD = "hard"


class PromptRecord(msgspec.Struct):
    """What is known of a prompt."""

    visits: int = 0
    streak: int = 0
    """z, visits in a row without variance, all of one kind."""
    kind: Kind | None = None
    success: float = 0.0
    """Smoothed share of right samples."""
    solved: int = 0
    """Visits in a row in which every sample was right."""
    epoch: int = 0
    """The pass of the newest visit."""


def visit_of(groups: Sequence[Group]) -> Visit | None:
    """How the rollout of a prompt went that gave these groups; None where none has a reward."""
    samples = sum(group.samples for group in groups)
    if not samples:
        return None
    return Visit(sum(group.correct for group in groups) / samples, all(group.equal_rewards for group in groups))


def kind_of(visit: Visit) -> Kind | None:
    """What a visit without variance was like; None where rewards differ."""
    if not visit.equal:
        return None
    return Kind.EASY if visit.success == 1 else Kind.HARD


class PromptRules:
    """The rules that a configuration switches on."""

    def __init__(self, config: CurriculumConfig) -> None:
        self.config = config

    @property
    def any(self) -> bool:
        return not (self.config.greso is None and self.config.solved is None and self.config.difficulty is None)

    def visited(self, record: PromptRecord, visit: Visit, epoch: int) -> None:
        """Enter a visit."""
        kind = kind_of(visit)
        if kind is None:
            record.streak = 0
        else:
            record.streak = record.streak + 1 if kind is record.kind else 1
        smoothing = 1.0 if record.visits == 0 or self.config.difficulty is None else self.config.difficulty.smoothing
        record.visits += 1
        record.kind = kind
        record.success += smoothing * (visit.success - record.success)
        record.solved = record.solved + 1 if visit.success == 1 else 0
        record.epoch = epoch

    def probability(self, record: PromptRecord, epoch: int) -> float:
        """Chance that a pass over the dataset asks for the prompt."""
        return 0.0 if self.is_solved(record, epoch) else self.chance(record)

    def chance(self, record: PromptRecord) -> float:
        """What a prompt's probability is in a pass in which it is not left out as solved."""
        greso, difficulty = self.config.greso, self.config.difficulty
        chance = 1.0 if greso is None else greso_probability(record.streak, record.kind, greso)
        if difficulty is not None:
            rates = {
                Pool.EASY: difficulty.easy_rate,
                Pool.MEDIUM: difficulty.medium_rate,
                Pool.HARD: difficulty.hard_rate,
            }
            chance *= rates[pool_of(record, difficulty)]
        return chance

    def solved_until(self, record: PromptRecord) -> int:
        """The last pass that leaves a prompt out because it was right so often; NEVER where none does."""
        solved = self.config.solved
        if solved is None or record.solved < solved.after:
            return NEVER
        return ALWAYS if solved.passes is None else min(ALWAYS, record.epoch + solved.passes)

    def is_solved(self, record: PromptRecord, epoch: int) -> bool:
        """Is it left out because it was right so often?"""
        return epoch <= self.solved_until(record)


def pool_of(record: PromptRecord, rule: DifficultyConfig) -> Pool:
    """The pool of a prompt that was visited."""
    if record.success >= rule.easy_from:
        return Pool.EASY
    return Pool.HARD if record.success <= rule.hard_to else Pool.MEDIUM


def greso_probability(z: int, kind: Kind | None, rule: GresoConfig) -> float:
    """p^z, not below the kind's floor; 1 after a visit with variance."""
    if z == 0:
        return 1.0
    floor = rule.easy_floor if kind is Kind.EASY else rule.hard_floor
    return float(max(floor, rule.p**z))
