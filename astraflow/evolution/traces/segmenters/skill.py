"""Work under a skill: from a Skill call or a typed `/skill` to the next one, or to the end of the turn or session.

Calls of a sub-agent belong to the skill that is open in the session's own conversation, unless it opens one itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from astraflow.evolution.traces.payload import opened_skill
from astraflow.evolution.traces.segmenters.base import Timeline, make_trace, outcome_of
from astraflow.evolution.traces.trace import AgentTrace, Event, Outcome, tool_call


@dataclass
class _Open:
    skill: str
    opener: Event
    calls: list[Event] = field(default_factory=list)


class SkillSegmenter:
    """Claims every call made while a skill is open."""

    def segment(self, timeline: Timeline) -> list[AgentTrace]:
        open_now: dict[str, _Open] = {}
        done: list[tuple[_Open, Event | None]] = []
        for event in timeline.events:
            conversation = event.conversation_id
            name = opened_skill(event.type, event.tool_name, event.tool_input, event.success)
            current = open_now.get(conversation)
            if name and not (current and current.skill == name and not current.calls):
                if current:
                    done.append((current, event))
                open_now[conversation] = _Open(name, event)
            if event.type == "tool_call" and event.sequence not in timeline.claimed:
                holder = open_now.get(conversation) or open_now.get(event.session_id)
                if holder:
                    holder.calls.append(event)
            elif event.type in ("turn_end", "conversation_end") and conversation in open_now:
                done.append((open_now.pop(conversation), event))
            elif event.type == "session_end":
                done += [(work, event) for work in open_now.values()]
                open_now.clear()
        done += [(work, None) for work in open_now.values()]
        return [_trace(timeline, work, end) for work, end in done]


def _trace(timeline: Timeline, work: _Open, end: Event | None) -> AgentTrace:
    own = [tool_call(call) for call in work.calls if call is not work.opener and call.tool_name != "Skill"]
    outcome = Outcome.ABANDONED if end is None else outcome_of(own)
    return make_trace(timeline, "skill", work.opener, work.calls, skill=work.skill, ended=end, outcome=outcome)
