"""What a package is called and where it lies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError

PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Kind(StrEnum):
    """What a package is for."""

    STABLE = "stable"
    """Skills for every task."""
    EXPERIMENTAL = "experimental"
    """A copy that one domain's optimisation works on."""
    VERTICAL = "vertical"
    """Skills proven for one domain."""
    TASK = "task"
    """One run, frozen with the skills that it used."""
    LINEAGE = "lineage"
    """The rounds of optimisation that led to an experimental package."""


FOLDERS = {
    Kind.STABLE: "stable",
    Kind.EXPERIMENTAL: "experimental",
    Kind.VERTICAL: "vertical",
    Kind.TASK: "task-packages",
    Kind.LINEAGE: "lineage-archive",
}
WITH_DOMAIN = frozenset({Kind.EXPERIMENTAL, Kind.VERTICAL, Kind.LINEAGE})
FROZEN = frozenset(Kind) - {Kind.EXPERIMENTAL}
"""Kinds whose files never change once written."""


@dataclass(frozen=True)
class PackageId:
    """`stable:n`, `experimental:dom:n`, `vertical:dom:n`, `task:n` or `lineage:dom:n`."""

    kind: Kind
    domain: str
    """Empty for stable and task."""
    name: str

    def __post_init__(self) -> None:
        if (self.kind in WITH_DOMAIN) != bool(self.domain):
            needs = "needs a domain (--domain)" if self.kind in WITH_DOMAIN else "has no domain in its id"
            raise _refused(f"a package of kind '{self.kind}' {needs}", str(self.name))
        for what, text in (("name", self.name), ("domain", self.domain)):
            if (text and not PART.fullmatch(text)) or (what == "name" and not text):
                raise _refused(f"package {what} '{text}' must be letters, digits, '.', '_' and '-'", text)

    def __str__(self) -> str:
        return ":".join(filter(None, (self.kind, self.domain, self.name)))

    @property
    def folder(self) -> Path:
        """Its folder, relative to the bank's packages."""
        return Path(FOLDERS[self.kind], self.domain, self.name)

    @classmethod
    def parse(cls, text: str) -> PackageId:
        """Read an id. SkillBankError says what an id looks like."""
        kind, _, rest = text.partition(":")
        if kind not in list(Kind):
            raise _refused(f"package id '{text}' must start with one of {', '.join(f'{k}:' for k in Kind)}", text)
        domain, _, name = rest.rpartition(":")
        return cls(Kind(kind), domain, name)


def _refused(message: str, package: str) -> SkillBankError:
    return SkillBankError(Problem(Code.UNKNOWN_PACKAGE, message, (package,) if package else ()))
