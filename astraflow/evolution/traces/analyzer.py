"""Traces become findings. These rules see what repeats; what it means for a skill is the analysis skill's strategy.

`reported` takes findings from whoever follows that strategy (traj-analyze-rllm), on the same terms: their sessions
must exist, their confidence is derived from the evidence and not claimed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from astraflow.errors import DataError
from astraflow.evolution.traces.findings import Finding, FindingKind, Report, confidence_of
from astraflow.evolution.traces.store import TraceStore
from astraflow.evolution.traces.trace import AgentTrace, Outcome, ToolCall

REPEATS = 3
"""The same call so often in one trace is a loop."""
_SIGNATURE_LENGTH = 120

_PARTICULARS = (
    (re.compile(r"'[^'\n]{1,200}'|\"[^\"\n]{1,200}\"|`[^`\n]{1,200}`"), "…"),
    (re.compile(r"(?:[A-Za-z]:)?(?:[\w.~-]*[/\\])+[\w.~-]*"), "PATH"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\d+"), "N"),
    (re.compile(r"\s+"), " "),
)


class ReportedFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding as an agent that follows the analysis skill writes it."""

    title: str
    skill: str | None
    session_ids: list[str]
    example: str = ""


@dataclass
class _Evidence:
    sessions: list[str] = field(default_factory=list)
    rounds: set[int] = field(default_factory=set)
    occurrences: int = 0
    example: str = ""

    def add(self, trace: AgentTrace, example: str, times: int = 1) -> None:
        if trace.session_id not in self.sessions:
            self.sessions.append(trace.session_id)
        if trace.round is not None:
            self.rounds.add(trace.round)
        self.occurrences += times
        self.example = self.example or example[:300]


def signature(error: str) -> str:
    """An error without what changes from case to case: names in quotes, paths, numbers."""
    line = next((line.strip() for line in error.splitlines() if line.strip()), "no message")
    for pattern, replacement in _PARTICULARS:
        line = pattern.sub(replacement, line)
    return line[:_SIGNATURE_LENGTH].strip()


def analyse(
    store: TraceStore, layer: str, name: str, *, round_number: int | None = None, skill: str | None = None
) -> Report:
    """Analyse a layer's traces: those of a skill or all, those up to a round or all."""
    traces = [
        trace
        for trace in store.traces(layer)
        if (skill is None or trace.skill == skill)
        and (round_number is None or trace.round is None or trace.round <= round_number)
    ]
    calls = [call for trace in traces for call in trace.tool_calls]
    return Report(
        name=name,
        layer=layer,
        round=round_number,
        sessions=len({trace.session_id for trace in traces}),
        traces=len(traces),
        tool_calls=len(calls),
        failed_calls=sum(not call.success for call in calls),
        outcomes=dict(sorted(Counter(trace.outcome.value for trace in traces).items())),
        findings=find(traces),
    )


def find(traces: Sequence[AgentTrace]) -> list[Finding]:
    """Everything that the rules see, the best supported first."""
    found = [*_failures(traces), *_repeated_calls(traces), *_abandoned(traces)]
    order = {"high": 0, "medium": 1, "low": 2}
    return sorted(found, key=lambda f: (order[f.confidence], -f.occurrences, f.finding_id))


def reported(store: TraceStore, findings: Iterable[ReportedFinding]) -> list[Finding]:
    """Take findings from outside; DataError where one has no evidence or names a session that does not exist."""
    taken = []
    for given in findings:
        if not given.session_ids:
            raise DataError(f"finding '{given.title}' names no session")
        evidence = _Evidence()
        for session in dict.fromkeys(store.check_session(name) for name in given.session_ids):
            evidence.sessions.append(session)
            evidence.rounds |= {event.round for event in store.events(session) if event.round is not None}
            evidence.occurrences += 1
        evidence.example = given.example[:300]
        taken.append(_finding(FindingKind.REPORTED, given.skill, given.title, evidence, key=given.title))
    return taken


def _failures(traces: Sequence[AgentTrace]) -> list[Finding]:
    stuck: dict[tuple[str | None, str, str], _Evidence] = defaultdict(_Evidence)
    mended: dict[tuple[str | None, str, str], dict[str, _Evidence]] = defaultdict(lambda: defaultdict(_Evidence))
    for trace in traces:
        for position, call in enumerate(trace.tool_calls):
            if call.success or call.interrupted:
                continue
            key = (trace.skill, call.tool_name, signature(call.error or ""))
            step = recovery(trace.tool_calls, position)
            if step is None:
                stuck[key].add(trace, call.error or "")
            else:
                mended[key][step.tool_name].add(trace, f"{call.target} → {step.tool_name} {step.target}")
    found = []
    for (skill, tool, text), steps in mended.items():
        step_name, evidence = max(steps.items(), key=lambda item: (len(item[1].sessions), item[0]))
        title = f'`{tool}` fails with "{text}" until `{step_name}` is called'
        found.append(_finding(FindingKind.RECOVERED_FAILURE, skill, title, evidence, tool, text, step_name))
    for (skill, tool, text), evidence in stuck.items():
        title = f'`{tool}` fails with "{text}"'
        found.append(_finding(FindingKind.REPEATED_FAILURE, skill, title, evidence, tool, text))
    return found


def recovery(calls: Sequence[ToolCall], failed: int) -> ToolCall | None:
    """The call that made a failed one work: the last successful other call before the same tool first worked again."""
    name = calls[failed].tool_name
    worked = next(
        (at for at in range(failed + 1, len(calls)) if calls[at].tool_name == name and calls[at].success), None
    )
    if worked is None:
        return None
    between = [call for call in calls[failed + 1 : worked] if call.success and call.tool_name != name]
    return between[-1] if between else None


def _repeated_calls(traces: Sequence[AgentTrace]) -> list[Finding]:
    loops: dict[tuple[str | None, str], _Evidence] = defaultdict(_Evidence)
    for trace in traces:
        for (tool, target), times in Counter((call.tool_name, call.target) for call in trace.tool_calls).items():
            if times >= REPEATS:
                loops[trace.skill, tool].add(trace, f"{times} × {tool} {target}", times)
    return [
        _finding(FindingKind.REPEATED_CALL, skill, f"`{tool}` is called again and again with one input", evidence, tool)
        for (skill, tool), evidence in loops.items()
    ]


def _abandoned(traces: Sequence[AgentTrace]) -> list[Finding]:
    left: dict[str, _Evidence] = defaultdict(_Evidence)
    for trace in traces:
        if trace.skill and trace.outcome is Outcome.ABANDONED:
            left[trace.skill].add(trace, f"{len(trace.tool_calls)} calls, then nothing")
    return [
        _finding(FindingKind.ABANDONED_SKILL, skill, f"work under `{skill}` is abandoned", evidence)
        for skill, evidence in left.items()
    ]


def _finding(
    kind: FindingKind,
    skill: str | None,
    title: str,
    evidence: _Evidence,
    tool: str | None = None,
    text: str | None = None,
    step: str | None = None,
    key: str = "",
) -> Finding:
    identity = "\0".join((kind, skill or "", tool or "", text or "", key))
    return Finding(
        finding_id="f-" + hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:12],
        kind=kind,
        title=title,
        skill=skill,
        tool_name=tool,
        signature=text,
        recovery=step,
        session_ids=evidence.sessions,
        rounds=sorted(evidence.rounds),
        confidence=confidence_of(evidence.rounds, evidence.sessions),
        occurrences=evidence.occurrences,
        example=evidence.example,
    )
