"""What happens by chance in a world: every message's delay and every mishap is one choice among a few.

A world is a function of its scenario and its choices, so a violation is found again from them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol


class Choices(Protocol):
    """Where chance comes from."""

    name: str
    """How to choose the same again."""

    def pick(self, options: int) -> int:
        """One of 0 … options - 1; 0 is what happens when nothing goes wrong."""


class ByChance:
    """From a seed."""

    def __init__(self, seed: int) -> None:
        self.name = f"seed {seed}"
        self._random = random.Random(seed)

    def pick(self, options: int) -> int:
        return self._random.randrange(options)


class ByPlan:
    """Option 0 everywhere but at some positions; remembers how many options each position had."""

    def __init__(self, deviations: Mapping[int, int]) -> None:
        self.name = f"plan {dict(deviations)}"
        self.options: list[int] = []
        self._deviations = deviations

    def pick(self, options: int) -> int:
        position = len(self.options)
        self.options.append(options)
        return self._deviations.get(position, 0) % options
