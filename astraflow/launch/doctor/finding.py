"""What a check found."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How much it matters."""

    OK = "ok"
    """Checked, and nothing is wrong."""
    WARNING = "warning"
    """The run works, but slower or otherwise than was probably meant."""
    ERROR = "error"
    """The run would fail, or learn from what is wrong."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of one check."""

    check: str
    """Which: threads, memory, batch, …"""
    severity: Severity
    message: str
    """What is the case, with the figures."""
    remedy: str = ""
    """What to change; empty where nothing is wrong."""
    key: str = ""
    """The configuration key that it is about."""

    def __str__(self) -> str:
        mark = {Severity.OK: "ok     ", Severity.WARNING: "warning", Severity.ERROR: "ERROR  "}[self.severity]
        where = f"{self.key}: " if self.key else ""
        remedy = f"\n{'':>9}→ {self.remedy}" if self.remedy else ""
        return f"{mark}  {self.check}: {where}{self.message}{remedy}"


def ok(check: str, message: str) -> Finding:
    return Finding(check=check, severity=Severity.OK, message=message)


def warning(check: str, message: str, remedy: str, key: str = "") -> Finding:
    return Finding(check=check, severity=Severity.WARNING, message=message, remedy=remedy, key=key)


def error(check: str, message: str, remedy: str, key: str = "") -> Finding:
    return Finding(check=check, severity=Severity.ERROR, message=message, remedy=remedy, key=key)


def unless(found: list[Finding], fine: Finding) -> list[Finding]:
    """What was found, or that all is fine."""
    return found or [fine]
