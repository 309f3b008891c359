"""An agent works on cases by a skill: recorded like a coding agent's session, or only scored."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from astraflow.errors import DataError
from astraflow.evolution.traces.capture import append
from astraflow.evolution.traces.payload import adapt
from astraflow.evolution.traces.practice.agents import Agent
from astraflow.evolution.traces.practice.desk import Case, Desk, Reply
from astraflow.evolution.traces.store import TraceStore


def measure(agent: Agent, skill_text: str, cases: Sequence[Case], seed: int, repeats: int = 1) -> dict[str, float]:
    """Mean score of each case; the same seed gives every skill the same luck. Nothing is recorded."""
    return {
        case.case_id: sum(_episode(agent, skill_text, case, seed + repeat) for repeat in range(repeats)) / repeats
        for case in cases
    }


def run_recorded(
    agent: Agent, store: TraceStore, skill: str, skill_text: str, cases: Sequence[Case], round_number: int, seed: int
) -> dict[str, float]:
    """Work on each case in a session of its own, recorded in the store; returns the scores.

    A session's id is `<skill>-r<round>-<case>`, with a number behind it where an interrupted run left one already.
    """
    taken = set(store.sessions())
    scores = {}
    for case in cases:
        stem = f"{skill}-r{round_number}-{case.case_id}"
        attempts = (stem if attempt == 1 else f"{stem}-{attempt}" for attempt in range(1, len(taken) + 2))
        session = next(name for name in attempts if name not in taken)
        scores[case.case_id] = _episode(agent, skill_text, case, seed, _Recorder(store, session, skill, round_number))
    return scores


class _Recorder:
    """Writes an episode's events by the same path as the hooks."""

    def __init__(self, store: TraceStore, session: str, skill: str, round_number: int) -> None:
        self._root, self._session, self._round = str(store.root), session, round_number
        self._calls = 0
        self.event("UserPromptExpansion", {"command_name": skill})

    def event(self, name: str, payload: Mapping[str, object]) -> None:
        event = adapt({"hook_event_name": name, "session_id": self._session, **payload}, name)
        if event is None:
            raise DataError(f"an episode's {name} was not understood as an event")
        append(self._root, event, self._round)

    def call(self, tool: str, text: str, reply: Reply) -> None:
        self._calls += 1
        payload = {"tool_name": tool, "tool_input": {"text": text}, "tool_use_id": f"{self._session}-{self._calls}"}
        if reply.success:
            self.event("PostToolUse", {**payload, "tool_response": {"text": reply.text}})
        else:
            self.event("PostToolUseFailure", {**payload, "error": reply.text})


def _episode(agent: Agent, skill_text: str, case: Case, seed: int, recorder: _Recorder | None = None) -> float:
    desk = Desk(case)

    def use(tool: str, text: str) -> Reply:
        reply = desk.call(tool, text)
        if recorder:
            recorder.call(tool, text, reply)
        return reply

    # a seed of its own for each case, or all of them would try tools in the same order
    agent.work(skill_text, desk.prompt, use, random.Random(f"{seed}/{case.case_id}").randrange(2**31))
    if recorder:
        recorder.event("Stop", {})
        recorder.event("SessionEnd", {"reason": f"score {desk.score}"})
    return desk.score
