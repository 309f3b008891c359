"""Findings become suggestions: by rule, by a model, by search, by a playbook that counts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow.errors import ConfigError, DataError
from astraflow.evolution.traces.findings import Confidence, Finding, FindingKind
from astraflow.evolution.traces.proposers import PROPOSERS, Context
from astraflow.evolution.traces.proposers.base import home_section
from astraflow.evolution.traces.proposers.pareto import Candidate, pareto_front, search, wins
from astraflow.evolution.traces.proposers.playbook import Bullet, Playbook, load, playbook_path
from astraflow.evolution.traces.proposers.reflect import ideas, json_text
from astraflow.evolution.traces.shelf import SkillShelf, SkillView
from astraflow.evolution.traces.trace import AgentTrace, Outcome, ToolCall
from tests.evolution.traces.conftest import SKILL

LOOKUP = '- When `lookup` fails with "unknown account …": call `normalise`, then `lookup` again.'


def finding(**changes: Any) -> Finding:
    given: dict[str, Any] = {
        "finding_id": "f-1",
        "kind": FindingKind.RECOVERED_FAILURE,
        "title": "lookup fails",
        "skill": SKILL,
        "tool_name": "lookup",
        "signature": "unknown account …",
        "recovery": "normalise",
        "session_ids": ["s1", "s2", "s3"],
        "rounds": [1],
        "confidence": Confidence.MEDIUM,
        "occurrences": 3,
    }
    return Finding(**{**given, **changes})


@pytest.fixture
def context(shelf: SkillShelf) -> Context:
    return Context(shelf.view(SKILL), [finding(), finding(finding_id="f-2", skill="rllm-other")])


def propose(name: str, context: Context) -> list[Any]:
    return PROPOSERS.resolve(name)().propose(context)


def test_a_rule_says_what_the_traces_taught(context: Context) -> None:
    (one,) = propose("rule", context)
    assert (one.content, one.target_section, one.action) == (LOOKUP, "pitfalls", "append")
    assert (one.session_ids, one.confidence, one.finding_ids) == (["s1", "s2", "s3"], Confidence.MEDIUM, ["f-1"])


def test_a_rule_does_not_repeat_the_skill_nor_invent_remedies(context: Context) -> None:
    told = SkillView(SKILL, context.view.sections, context.view.text + LOOKUP)
    assert propose("rule", replace(context, view=told)) == []
    unknown = finding(kind=FindingKind.REPEATED_FAILURE, recovery=None)
    assert propose("rule", replace(context, findings=[unknown])) == []
    (loop,) = propose("rule", replace(context, findings=[finding(kind=FindingKind.REPEATED_CALL)]))
    assert "at most twice" in loop.content


def test_advice_goes_where_advice_is() -> None:
    assert home_section(SkillView("s", {"intro": "", "Troubleshooting": "", "end": ""}, "")) == "Troubleshooting"
    assert home_section(SkillView("s", {"intro": "", "end": ""}, "")) == "end"
    assert home_section(SkillView("s", {}, "")) is None


IDEA = {
    "target_section": "pitfalls",
    "action": "append",
    "description": "normalise first",
    "content": "Normalise names.",
    "finding_ids": ["f-1", "f-9"],
}


def test_reflection_cites_findings_and_takes_its_evidence_from_them(context: Context) -> None:
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return "Here:\n```json\n" + json.dumps([IDEA, {**IDEA, "finding_ids": ["f-9"]}]) + "\n```"

    (one,) = propose("reflect", replace(context, ask=ask))
    assert (one.content, one.session_ids, one.proposer) == ("Normalise names.", ["s1", "s2", "s3"], "reflect")
    assert "[section pitfalls]" in asked[0]
    assert "f-1" in asked[0]
    assert "f-2" not in asked[0]  # another skill's


def test_reflection_asks_again_and_then_gives_up() -> None:
    replies = iter(["I think…", json.dumps([IDEA])])
    assert [idea.description for idea in ideas(lambda prompt: next(replies), "q")] == ["normalise first"]
    with pytest.raises(DataError, match="no JSON list"):
        ideas(lambda prompt: "no", "q")
    assert json_text("[1]") == "[1]"


def test_a_proposer_says_what_it_lacks(context: Context) -> None:
    for name in ("reflect", "pareto", "playbook"):
        with pytest.raises(ConfigError, match="needs"):
            propose(name, context)


def candidate(*scores: float, **changed: str) -> Candidate:
    return Candidate(changed, scores)


def test_the_pareto_front_keeps_what_is_best_somewhere() -> None:
    base, left, right, middle = candidate(0, 0), candidate(1, 0), candidate(0, 1), candidate(0.5, 0.5)
    pool = [base, left, right, middle]
    assert pareto_front(pool) == [left, right, middle]
    assert [wins(one, pool) for one in pool] == [0, 1, 1, 0]


def test_search_merges_candidates_that_are_best_on_different_cases(context: Context) -> None:
    """Two sections each solve half of the cases: only a candidate with both rewritten solves all."""
    rewritten = {"pitfalls": "P!", "procedure": "Q!"}

    def try_out(changed: Mapping[str, str], cases: Sequence[int]) -> list[float]:
        solves = [changed.get("pitfalls") == "P!", changed.get("procedure") == "Q!"]
        return [float(solves[case % 2]) for case in cases]

    def ask(prompt: str) -> str:
        return next(text for name, text in rewritten.items() if f"section '{name}'" in prompt)

    best = search(replace(context, ask=ask, cases=4, seed=3), try_out, steps=12)
    assert (dict(best.changed), best.mean) == (rewritten, 1.0)


def test_search_returns_the_skill_as_it_is_where_nothing_is_better(context: Context) -> None:
    found = replace(
        context, ask=lambda prompt: "worse", try_out=lambda changed, cases: [0.5 - len(changed)] * len(cases), cases=4
    )
    assert propose("pareto", found) == []


def test_search_without_a_model_tries_the_rules_advice(context: Context) -> None:
    def try_out(changed: Mapping[str, str], cases: Sequence[int]) -> list[float]:
        return [float(LOOKUP in changed.get("pitfalls", ""))] * len(cases)

    (one,) = propose("pareto", replace(context, try_out=try_out, cases=4))
    assert one.action == "replace"
    assert LOOKUP in one.content
    assert one.content.startswith(context.view.sections["pitfalls"])


def trace(name: str, *steps: tuple[str, bool]) -> AgentTrace:
    calls = [
        ToolCall(
            sequence=n,
            timestamp="t",
            tool_name=tool,
            target="",
            success=ok,
            error=None if ok else "unknown account 'x'",
        )
        for n, (tool, ok) in enumerate(steps)
    ]
    return AgentTrace(
        trace_id=name, session_id=name, conversation_id=name, layer="rllm", segmenter="skill", skill=SKILL, intent=None,
        outcome=Outcome.SUCCESS, round=1, started="t", ended="t", tool_calls=calls, files_touched=[],
    )  # fmt: skip


HELPED = trace("t1", ("lookup", False), ("normalise", True), ("lookup", True))
HARMED = trace("t2", ("lookup", False), ("normalise", True), ("lookup", False))
UNUSED = trace("t3", ("lookup", False), ("reverse", True), ("lookup", True))


def test_a_playbook_counts_what_helped_and_what_harmed_once() -> None:
    bullet = Bullet(bullet_id="b", tool_name="lookup", signature="unknown account …", step="normalise", text="x")
    playbook = Playbook(skill=SKILL, bullets=[bullet]).counted([HELPED, HARMED, UNUSED])
    assert [(b.helpful, b.harmful, b.retired) for b in playbook.bullets] == [(1, 1, False)]
    assert playbook.counted([HELPED, HARMED, UNUSED]) == playbook
    again = playbook.counted([trace("t4", ("lookup", False), ("normalise", False), ("lookup", False))])
    assert [b.bullet_id for b in again.retired()] == ["b"]


def test_a_playbook_grows_by_bullets_and_does_not_bring_back_what_it_retired(context: Context, tmp_path: Path) -> None:
    found = replace(context, folder=tmp_path)
    (one,) = propose("playbook", found)
    assert (one.content, one.proposer) == (LOOKUP, "playbook")
    propose("playbook", found)
    assert len(load(playbook_path(tmp_path, SKILL), SKILL).bullets) == 1
    assert propose("playbook", replace(found, traces=[HARMED])) == []
