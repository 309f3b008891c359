"""What a segmenter is, and how a set of calls becomes a trace."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from astraflow.evolution.traces.payload import layer_of
from astraflow.evolution.traces.trace import AgentTrace, Event, Intent, Outcome, ToolCall, tool_call
from astraflow.registry import Registry

SEGMENTERS = Registry(
    "segmenter",
    {
        "skill": "astraflow.evolution.traces.segmenters.skill:SkillSegmenter",
        "free": "astraflow.evolution.traces.segmenters.free:FreeSegmenter",
    },
    "astraflow.segmenters",
)


@dataclass
class Timeline:
    """A session's events in order, and which of its tool calls a trace has claimed (by sequence)."""

    session: str
    events: Sequence[Event]
    claimed: set[int] = field(default_factory=set)

    def open_calls(self) -> list[Event]:
        return [event for event in self.events if event.type == "tool_call" and event.sequence not in self.claimed]


class Segmenter(Protocol):
    """Makes traces of calls that nobody has claimed yet."""

    def segment(self, timeline: Timeline) -> list[AgentTrace]: ...


def make_trace(
    timeline: Timeline,
    segmenter: str,
    opener: Event,
    calls: Sequence[Event],
    *,
    skill: str | None = None,
    intent: Intent | None = None,
    ended: Event | None = None,
    outcome: Outcome | None = None,
) -> AgentTrace:
    """Build a trace whose id depends only on its session, segmenter and first event, so that it survives repetition."""
    kept = [tool_call(call) for call in calls]
    last = ended or (calls[-1] if calls else opener)
    rounds = [event.round for event in (opener, *calls) if event.round is not None]
    identity = f"{timeline.session}/{segmenter}/{opener.conversation_id}/{opener.sequence}"
    return AgentTrace(
        trace_id="t-" + hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        session_id=timeline.session,
        conversation_id=opener.conversation_id,
        layer=layer_of(skill),
        segmenter=segmenter,
        skill=skill,
        intent=intent,
        outcome=outcome or outcome_of(kept),
        round=max(rounds, default=None),
        started=opener.timestamp,
        ended=last.timestamp,
        tool_calls=kept,
        files_touched=list(dict.fromkeys(file for call in calls for file in call.files_touched)),
    )


def outcome_of(calls: Sequence[ToolCall]) -> Outcome:
    """The outcome that the calls of a finished trace tell."""
    if not calls or calls[-1].interrupted:
        return Outcome.ABANDONED
    if not calls[-1].success:
        return Outcome.FAILURE
    return Outcome.SUCCESS if all(call.success for call in calls) else Outcome.PARTIAL
