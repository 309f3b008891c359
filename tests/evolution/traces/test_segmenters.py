"""Every tool call lands in exactly one trace; skills claim first; the rest is grouped by files."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.errors import InvariantError
from astraflow.evolution.traces.segmenters import SEGMENTERS, Timeline, segment
from astraflow.evolution.traces.segmenters.free import groups_by_file
from astraflow.evolution.traces.trace import AgentTrace, Event, Intent, Outcome

TYPES = ["tool_call", "tool_call", "tool_call", "skill_open", "turn_end", "conversation_end", "session_end", "other"]


def event(sequence: int, kind: str = "tool_call", **fields: Any) -> Event:
    base = {"schema_version": 1, "session_id": "s", "conversation_id": "s", "timestamp": "t", "layer": "meta"}
    given = {"tool_name": "Read", "tool_input": {}, "success": True} if kind == "tool_call" else {}
    return Event(**{**base, **given, "type": kind, "sequence": sequence, **fields})


def call(sequence: int, tool: str = "Read", *files: str, success: bool = True, **fields: Any) -> Event:
    return event(sequence, tool_name=tool, files_touched=list(files), success=success, **fields)


def opens(sequence: int, skill: str, **fields: Any) -> Event:
    return event(sequence, "skill_open", tool_input={"skill": skill}, **fields)


EVENTS = st.builds(
    event,
    st.integers(0, 30),  # sequences may repeat, as in files that were copied together
    st.sampled_from(TYPES),
    conversation_id=st.sampled_from(["s", "a1", "a2"]),
    tool_name=st.sampled_from(["Read", "Edit", "Bash", "Skill", None]),
    tool_input=st.sampled_from(
        [None, {}, {"skill": "rllm-run"}, {"skill": "traj-loop"}, {"command": "pytest"}, "text"]
    ),
    success=st.sampled_from([True, False, None]),
    interrupted=st.booleans(),
    files_touched=st.lists(st.sampled_from(["a", "b", "c"]), max_size=2),
)


@given(st.lists(EVENTS, max_size=40), st.sampled_from([("skill", "free"), ("free",), ("free", "skill")]))
def test_every_tool_call_lands_in_exactly_one_trace(events: list[Event], chain: tuple[str, ...]) -> None:
    traces = segment("s", events, chain)
    landed = Counter(call.sequence for trace in traces for call in trace.tool_calls)
    assert set(landed.values()) <= {1}
    assert landed.total() == sum(one.type == "tool_call" for one in events)
    assert len({trace.trace_id for trace in traces}) == len(traces)
    assert all(trace.outcome in Outcome for trace in traces)


class Greedy:
    """Claims every call of a session, claimed or not."""

    def segment(self, timeline: Timeline) -> list[AgentTrace]:
        return SEGMENTERS.resolve("free")().segment(Timeline(timeline.session, timeline.events))


class Lazy:
    """Claims nothing."""

    def segment(self, timeline: Timeline) -> list[AgentTrace]:
        return []


SEGMENTERS.register("test-greedy")(Greedy)
SEGMENTERS.register("test-lazy")(Lazy)


def test_a_segmenter_that_claims_twice_or_leaves_calls_is_an_error() -> None:
    with pytest.raises(InvariantError, match="twice"):
        segment("s", [call(0)], ["free", "test-greedy"])
    with pytest.raises(InvariantError, match="in no trace"):
        segment("s", [call(0)], ["test-lazy"])


def shape(traces: list[AgentTrace]) -> list[tuple[str | None, list[int], Outcome]]:
    return sorted(
        [(trace.skill, [c.sequence for c in trace.tool_calls], trace.outcome) for trace in traces], key=lambda t: t[1]
    )


def test_a_skill_lasts_to_the_next_one_or_the_end_of_the_turn() -> None:
    events = [
        call(0),
        opens(1, "rllm-run"),
        call(2),
        event(3, tool_name="Skill", tool_input={"skill": "traj-loop"}),
        call(4, success=False),
        event(5, "turn_end"),
        call(6),
    ]
    assert shape(segment("s", events)) == [
        (None, [0], Outcome.SUCCESS),
        ("rllm-run", [2], Outcome.SUCCESS),
        ("traj-loop", [3, 4], Outcome.FAILURE),
        (None, [6], Outcome.SUCCESS),
    ]


def test_sub_agents_work_under_the_open_skill_unless_they_open_one() -> None:
    events = [
        opens(0, "rllm-run"),
        call(1, conversation_id="a1"),
        opens(2, "traj-loop", conversation_id="a1"),
        call(3, conversation_id="a1"),
        event(4, "conversation_end", conversation_id="a1"),
        call(5),
        event(6, "session_end"),
    ]
    assert shape(segment("s", events)) == [
        ("rllm-run", [1, 5], Outcome.SUCCESS),
        ("traj-loop", [3], Outcome.SUCCESS),
    ]


@pytest.mark.parametrize(
    ("tail", "outcome"),
    [
        ([call(1), event(2, "turn_end")], Outcome.SUCCESS),
        ([call(1, success=False), call(2), event(3, "turn_end")], Outcome.PARTIAL),
        ([call(1), call(2, success=False), event(3, "turn_end")], Outcome.FAILURE),
        ([call(1), call(2, success=False, interrupted=True), event(3, "turn_end")], Outcome.ABANDONED),
        ([call(1)], Outcome.ABANDONED),
        ([event(1, "turn_end")], Outcome.ABANDONED),
    ],
)
def test_outcomes_of_a_skill(tail: list[Event], outcome: Outcome) -> None:
    traces = segment("s", [opens(0, "rllm-run"), *tail])
    assert [trace.outcome for trace in traces] == [outcome]


def test_a_typed_skill_that_is_then_called_is_one_trace() -> None:
    events = [
        opens(0, "rllm-run"),
        event(1, tool_name="Skill", tool_input={"skill": "rllm-run"}),
        call(2),
        event(3, "turn_end"),
    ]
    assert shape(segment("s", events)) == [("rllm-run", [1, 2], Outcome.SUCCESS)]


def test_free_work_splits_at_turns_and_by_files() -> None:
    events = [
        call(0, "Bash"),
        call(1, "Read", "a"),
        call(2, "Read", "b"),
        call(3, "Edit", "a"),
        call(4, "Bash"),
        event(5, "turn_end"),
        call(6, "Edit", "a"),
    ]
    assert [trace[1] for trace in shape(segment("s", events))] == [[0, 1, 3, 4], [2], [6]]


def test_files_connect_calls_through_each_other() -> None:
    calls = [call(0, "Read", "a"), call(1, "Read", "b"), call(2, "Edit", "a", "b")]
    assert [[c.sequence for c in group] for group in groups_by_file(calls)] == [[0, 1, 2]]
    assert groups_by_file([]) == []


@pytest.mark.parametrize(
    ("calls", "intent"),
    [
        ([call(0, "Read"), call(1, "Grep")], Intent.EXPLORATION),
        ([call(0, "Read"), call(1, "Edit")], Intent.IMPLEMENTATION),
        ([call(0, "Bash", tool_input={"command": "make test"})], Intent.TESTING),
        ([call(0, "Bash", tool_input={"command": "python -m pytest -q"}, success=False)], Intent.TESTING),
        ([call(0, "Bash", success=False), call(1, "Edit")], Intent.DEBUGGING),
        ([call(0, "Bash", tool_input={"command": "echo contest"})], Intent.EXPLORATION),
    ],
)
def test_intents_of_free_work(calls: list[Event], intent: Intent) -> None:
    assert [trace.intent for trace in segment("s", calls)] == [intent]
