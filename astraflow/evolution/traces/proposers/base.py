"""What a proposer is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from astraflow.evolution.traces.findings import Finding, Suggestion, confidence_of
from astraflow.evolution.traces.shelf import SkillView
from astraflow.evolution.traces.trace import AgentTrace
from astraflow.registry import Registry

PROPOSERS = Registry(
    "proposer",
    {
        "rule": "astraflow.evolution.traces.proposers.rule:RuleProposer",
        "reflect": "astraflow.evolution.traces.proposers.reflect:ReflectProposer",
        "pareto": "astraflow.evolution.traces.proposers.pareto:ParetoProposer",
        "playbook": "astraflow.evolution.traces.proposers.playbook:PlaybookProposer",
    },
    "astraflow.proposers",
)

Ask = Callable[[str], str]
"""A prompt goes to a language model; its reply's text comes back."""
TryOut = Callable[[Mapping[str, str], Sequence[int]], list[float]]
"""Scores of the skill with these sections' texts replaced, on the training cases with these numbers."""


@dataclass(frozen=True)
class Context:
    """What proposers may use."""

    view: SkillView
    findings: Sequence[Finding]
    traces: Sequence[AgentTrace] = ()
    ask: Ask | None = None
    try_out: TryOut | None = None
    """On training cases: held-out ones are for the acceptance alone."""
    cases: int = 0
    """How many training cases there are."""
    seed: int = 0
    folder: Path | None = field(default=None)
    """Where a proposer may keep its own state."""

    def own_findings(self) -> list[Finding]:
        """The findings about this skill."""
        return [finding for finding in self.findings if finding.skill == self.view.name]


class Proposer(Protocol):
    """Turns findings into suggestions; ConfigError where it lacks something it needs."""

    def propose(self, context: Context) -> list[Suggestion]: ...


_HOMES = ("pitfalls", "troubleshooting", "errors", "recovery", "playbook", "procedure", "steps", "workflow", "rules")


def home_section(view: SkillView) -> str | None:
    """The section for advice on what goes wrong: the one that is about that by name, else the last."""
    for home in _HOMES:
        for name in view.sections:
            if home in name.lower():
                return name
    return next(reversed(list(view.sections)), None)


def suggest(
    view: SkillView, findings: Sequence[Finding], section: str, action: str, description: str, content: str, by: str
) -> Suggestion:
    """A suggestion whose evidence is that of the findings."""
    sessions = list(dict.fromkeys(session for finding in findings for session in finding.session_ids))
    rounds = sorted({number for finding in findings for number in finding.rounds})
    return Suggestion(
        skill=view.name,
        target_section=section,
        action=action,
        description=description,
        content=content,
        session_ids=sessions,
        rounds=rounds,
        confidence=confidence_of(rounds, sessions),
        proposer=by,
        finding_ids=[finding.finding_id for finding in findings],
    )
