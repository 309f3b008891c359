"""Invariant: every tool call of a session lands in exactly one trace, whatever segmenters are in the chain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from astraflow.errors import InvariantError
from astraflow.evolution.traces.segmenters.base import SEGMENTERS, Segmenter, Timeline
from astraflow.evolution.traces.store import TraceStore
from astraflow.evolution.traces.trace import AgentTrace, Event

DEFAULT_CHAIN = ("skill", "free")


def segment(session: str, events: Sequence[Event], chain: Sequence[str] = DEFAULT_CHAIN) -> list[AgentTrace]:
    """Cut a session's events into traces; InvariantError where a segmenter claims a call twice or one is left over."""
    timeline = Timeline(session, numbered(events))
    traces: list[AgentTrace] = []
    for name in chain:
        segmenter: Segmenter = SEGMENTERS.resolve(name)()
        for trace in segmenter.segment(timeline):
            sequences = [call.sequence for call in trace.tool_calls]
            twice = timeline.claimed.intersection(sequences)
            if twice or len(set(sequences)) != len(sequences):
                raise InvariantError(f"segmenter '{name}' claims calls {sorted(twice) or sequences} twice in {session}")
            timeline.claimed.update(sequences)
            traces.append(trace)
    if rest := timeline.open_calls():
        raise InvariantError(f"{len(rest)} calls of {session} are in no trace; end the chain with 'free'")
    return sorted(traces, key=lambda trace: (trace.started, trace.trace_id))


def segment_session(store: TraceStore, session: str, chain: Sequence[str] = DEFAULT_CHAIN) -> list[AgentTrace]:
    """Segment a stored session anew and put the result in the place of the earlier one."""
    traces = segment(session, store.events(session), chain)
    store.replace_traces(session, traces)
    return traces


def numbered(events: Sequence[Event]) -> list[Event]:
    """The events in order, each with a sequence of its own even where files carry one twice."""
    ordered = sorted(events, key=lambda event: event.sequence)
    unique: list[Event] = []
    for event in ordered:
        free = unique[-1].sequence + 1 if unique else event.sequence
        unique.append(event if event.sequence >= free else msgspec.structs.replace(event, sequence=free))
    return unique
