"""A bookkeeping desk: look an account up, bring its amount into cents, submit it.

What makes it a task for a skill: accounts come with untidy names, on which `lookup` fails until they are normalised,
and some amounts are in euros, which `submit` refuses until they are converted. An agent that does not know this must
try tools within a limited number of steps; one that was told does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from astraflow.errors import DataError

TOOLS = {
    "lookup": "find an account by its key; returns its amount",
    "submit": "hand in an amount in cents; ends the case",
    "normalise": "bring a name into the form of an account's key",
    "convert": "turn an amount in euros into cents",
    "reverse": "write a text backwards",
    "shout": "write a text in capitals",
    "pad": "put spaces around a text",
    "discard": "throw the case away; ends it",
}
FINAL = frozenset({"submit", "discard"})
"""Tools that end a case, where they succeed."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One account to be booked."""

    case_id: str
    name: str
    """As the customer wrote it."""
    cents: int
    in_euros: bool
    """The ledger has the amount in euros."""


@dataclass(frozen=True)
class Reply:
    """What a tool says."""

    text: str
    success: bool = True


class Desk:
    """The environment of one case."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._key = normalised(case.name)
        self.prompt = case.name
        self.score = 0.0
        self.done = False

    def call(self, tool: str, text: str) -> Reply:
        """Use a tool on a text; an unknown tool or one used on the wrong thing fails with a message."""
        if self.done:
            return Reply("the case is closed", success=False)
        work: dict[str, Callable[[str], Reply]] = {
            "lookup": self._lookup,
            "submit": self._submit,
            "normalise": lambda given: Reply(normalised(given)),
            "convert": _convert,
            "reverse": lambda given: Reply(given[::-1]),
            "shout": lambda given: Reply(given.upper()),
            "pad": lambda given: Reply(f" {given} "),
            "discard": self._discard,
        }
        if tool not in work:
            return Reply(f"there is no tool '{tool}'", success=False)
        return work[tool](text)

    def _lookup(self, key: str) -> Reply:
        if key != self._key:
            return Reply(f"unknown account '{key}'", success=False)
        cents = self._case.cents
        return Reply(f"{cents // 100}.{cents % 100:02d} EUR" if self._case.in_euros else str(cents))

    def _submit(self, amount: str) -> Reply:
        if not amount.isdigit():
            return Reply(f"'{amount}' is not an amount in cents", success=False)
        self.done = True
        self.score = float(int(amount) == self._case.cents)
        return Reply("booked")

    def _discard(self, text: str) -> Reply:
        self.done = True
        return Reply("thrown away")


def normalised(name: str) -> str:
    """Lower case, words joined by underscores."""
    return "_".join(re.findall(r"[a-z0-9]+", name.lower()))


def _convert(amount: str) -> Reply:
    match = re.fullmatch(r"(\d+)\.(\d{2}) EUR", amount)
    if match is None:
        return Reply(f"'{amount}' is not an amount in euros", success=False)
    return Reply(str(int(match[1]) * 100 + int(match[2])))


class Tasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task file: cases to learn from and cases to be measured on."""

    name: str
    train: list[Case]
    held_out: list[Case]

    def check(self) -> None:
        """DataError where a case is both, or there are none."""
        ids = [case.case_id for case in (*self.train, *self.held_out)]
        if not self.train or not self.held_out:
            raise DataError(f"tasks '{self.name}': train and held_out need at least one case each")
        if len(set(ids)) != len(ids):
            raise DataError(f"tasks '{self.name}': a case_id is there twice; held-out cases must not be trained on")
