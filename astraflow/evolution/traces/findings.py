"""The records of an analysis: what goes wrong (findings), what would mend it (suggestions), both in a report."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec


class Confidence(StrEnum):
    """How well a finding is supported."""

    HIGH = "high"
    """Seen in three rounds or more."""
    MEDIUM = "medium"
    """Seen in two rounds, or in three sessions of one round."""
    LOW = "low"
    """Seen less often."""


class FindingKind(StrEnum):
    """What was found in traces."""

    REPEATED_FAILURE = "repeated_failure"
    """A tool fails in the same way and the work does not get past it."""
    RECOVERED_FAILURE = "recovered_failure"
    """A tool fails in the same way, and a known step makes it work."""
    REPEATED_CALL = "repeated_call"
    """The same call is made again and again."""
    ABANDONED_SKILL = "abandoned_skill"
    """A skill is opened and its work never finished."""
    REPORTED = "reported"
    """Found by whoever followed the analysis skill, not by a rule."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem with its evidence."""

    finding_id: str
    kind: FindingKind
    title: str
    skill: str | None
    """The skill that was open; None for free work."""
    tool_name: str | None = None
    signature: str | None = None
    """The error with its particulars taken out."""
    recovery: str | None = None
    """The tool whose call made the failed one work."""
    session_ids: list[str]
    rounds: list[int]
    confidence: Confidence
    occurrences: int
    example: str = ""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change to one section of a skill, not yet a patch."""

    skill: str
    target_section: str
    action: str
    description: str
    content: str
    session_ids: list[str]
    rounds: list[int] = []
    confidence: Confidence = Confidence.LOW
    proposer: str = "rule"
    finding_ids: list[str] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What an analysis of a layer says."""

    name: str
    layer: str
    round: int | None
    sessions: int
    traces: int
    tool_calls: int
    failed_calls: int
    outcomes: dict[str, int]
    findings: list[Finding]
    suggestions: list[Suggestion] = []


def confidence_of(rounds: Collection[int], sessions: Collection[str]) -> Confidence:
    """How well evidence from these rounds and sessions supports a finding."""
    if len(set(rounds)) >= 3:
        return Confidence.HIGH
    if len(set(rounds)) == 2 or len(set(sessions)) >= 3:
        return Confidence.MEDIUM
    return Confidence.LOW
