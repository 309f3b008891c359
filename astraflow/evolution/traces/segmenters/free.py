"""Work outside skills: cut where a turn ends, grouped by the files that calls share, named by what was done."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from astraflow.evolution.traces.segmenters.base import Timeline, make_trace
from astraflow.evolution.traces.trace import AgentTrace, Event, Intent

_EDITS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit", "ApplyPatch", "apply_patch"})
_TESTS = re.compile(
    r"\b(pytest|unittest|tox|nox|ctest|jest|vitest|mocha|phpunit|rspec|mypy|ruff|eslint|tsc"
    r"|(make|just|npm|pnpm|yarn|cargo|go|bazel|gradlew?|mvn|dotnet)\s+(run\s+)?(test|check|lint)\w*)\b"
)
_ENDS = ("turn_end", "conversation_end", "session_end")


class FreeSegmenter:
    """Claims every call that is left."""

    def segment(self, timeline: Timeline) -> list[AgentTrace]:
        return [
            make_trace(timeline, "free", group[0], group, intent=intent_of(group))
            for turn in _turns(timeline)
            for group in groups_by_file(turn)
        ]


def _turns(timeline: Timeline) -> list[list[Event]]:
    """The unclaimed calls of each conversation, cut at the ends of its turns, in order of their first call."""
    turns: list[list[Event]] = []
    current: dict[str, list[Event]] = {}
    for event in timeline.events:
        if event.type == "tool_call" and event.sequence not in timeline.claimed:
            if event.conversation_id not in current:
                current[event.conversation_id] = []
                turns.append(current[event.conversation_id])
            current[event.conversation_id].append(event)
        elif event.type == "session_end":
            current.clear()
        elif event.type in _ENDS:
            current.pop(event.conversation_id, None)
    return turns


def groups_by_file(calls: Sequence[Event]) -> list[list[Event]]:
    """Calls that share a file, directly or through others, come together; one without files joins its predecessor."""
    root = list(range(len(calls)))

    def find(position: int) -> int:
        while root[position] != position:
            root[position] = root[root[position]]
            position = root[position]
        return position

    seen: dict[str, int] = {}
    for position, call in enumerate(calls):
        for file in call.files_touched:
            other = seen.setdefault(file, position)
            root[find(position)] = find(other)
        if not call.files_touched and position:
            root[find(position)] = find(position - 1)
    if calls and not calls[0].files_touched:  # what came before the first file belongs to it
        first = next((position for position, call in enumerate(calls) if call.files_touched), 0)
        root[find(first)] = find(0)
    groups: dict[int, list[Event]] = defaultdict(list)
    for position, call in enumerate(calls):
        groups[find(position)].append(call)
    return sorted(groups.values(), key=lambda group: group[0].sequence)


def intent_of(calls: Sequence[Event]) -> Intent:
    """What a group of calls was about."""
    edits = [position for position, call in enumerate(calls) if call.tool_name in _EDITS]
    tests = [position for position, call in enumerate(calls) if _is_test(call)]
    failed = next((position for position, call in enumerate(calls) if call.success is False), None)
    if failed is not None and any(position > failed for position in (*edits, *tests)):
        return Intent.DEBUGGING
    if edits:
        return Intent.IMPLEMENTATION
    return Intent.TESTING if tests else Intent.EXPLORATION


def _is_test(call: Event) -> bool:
    command = call.tool_input.get("command") if isinstance(call.tool_input, dict) else None
    return isinstance(command, str) and _TESTS.search(command) is not None
