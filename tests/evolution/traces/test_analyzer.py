"""What repeats in traces becomes findings whose sessions exist and whose confidence is derived."""

import pytest

from astraflow.errors import DataError
from astraflow.evolution.traces.analyzer import ReportedFinding, analyse, reported, signature
from astraflow.evolution.traces.findings import Confidence, FindingKind, confidence_of
from astraflow.evolution.traces.report import render
from astraflow.evolution.traces.segmenters import segment_session
from astraflow.evolution.traces.store import TraceStore
from tests.evolution.traces.conftest import Send

SKILL = "rllm-run"


def session(store: TraceStore, send: Send, name: str, round_number: int, recovers: bool = False) -> None:
    (store.rounds / f"round_{round_number}").mkdir(parents=True, exist_ok=True)
    send("UserPromptExpansion", name, command_name=SKILL)
    send("PostToolUseFailure", name, tool_name="Edit", error=f"File '/a/{name}.py' was not read at line {len(name)}")
    if recovers:
        send("PostToolUse", name, tool_name="Read", tool_input={"file_path": "/a.py"})
        send("PostToolUse", name, tool_name="Edit")
    send("Stop", name)
    segment_session(store, name)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("no such file: '/tmp/x.py'", "no such file: '/var/y.py'"),
        ("line 12: bad token\nmore", "line 7:  bad token"),
        ("/a/b/c.py missing", "/d.py missing"),
        ("at 0xdeadbeef", "at 0x12"),
    ],
)
def test_errors_that_differ_in_particulars_have_one_signature(a: str, b: str) -> None:
    assert signature(a) == signature(b)
    assert signature(a) != signature("something else")


def test_a_failure_is_found_over_sessions_and_rounds(store: TraceStore, send: Send) -> None:
    for number in (1, 2, 3):
        session(store, send, f"s{number}", number)
    (found,) = analyse(store, "rllm", "x").findings
    assert (found.kind, found.tool_name, found.occurrences) == (FindingKind.REPEATED_FAILURE, "Edit", 3)
    assert (found.session_ids, found.rounds, found.confidence) == (["s1", "s2", "s3"], [1, 2, 3], Confidence.HIGH)


def test_a_remedy_that_worked_is_part_of_the_finding(store: TraceStore, send: Send) -> None:
    session(store, send, "s1", 1, recovers=True)
    (found,) = analyse(store, "rllm", "x").findings
    assert (found.kind, found.recovery, found.confidence) == (FindingKind.RECOVERED_FAILURE, "Read", Confidence.LOW)


def test_loops_and_abandoned_skills_are_found(store: TraceStore, send: Send) -> None:
    send("UserPromptExpansion", command_name=SKILL)
    for _ in range(4):
        send("PostToolUse", tool_name="Bash", tool_input={"command": "ls"})
    segment_session(store, "s1")
    kinds = {finding.kind: finding for finding in analyse(store, "rllm", "x").findings}
    assert kinds[FindingKind.REPEATED_CALL].occurrences == 4
    assert kinds[FindingKind.ABANDONED_SKILL].skill == SKILL


def test_an_analysis_looks_at_one_skill_and_up_to_a_round(store: TraceStore, send: Send) -> None:
    session(store, send, "s1", 1)
    session(store, send, "s2", 2)
    assert analyse(store, "rllm", "x", round_number=1).sessions == 1
    assert analyse(store, "rllm", "x", skill="rllm-other").sessions == 0
    assert analyse(store, "meta", "x").sessions == 0


@pytest.mark.parametrize(
    ("rounds", "sessions", "confidence"),
    [
        ([1, 2, 3], ["a"], Confidence.HIGH),
        ([1, 1, 1], ["a"], Confidence.LOW),
        ([1, 2], ["a"], Confidence.MEDIUM),
        ([], ["a", "b", "c"], Confidence.MEDIUM),
        ([1], ["a", "b"], Confidence.LOW),
    ],
)
def test_confidence(rounds: list[int], sessions: list[str], confidence: Confidence) -> None:
    assert confidence_of(rounds, sessions) is confidence


def test_findings_from_outside_need_sessions_that_exist(store: TraceStore, send: Send) -> None:
    session(store, send, "s1", 1)
    given = ReportedFinding(title="plans too little", skill=SKILL, session_ids=["s1", "s1"], example="…")
    (found,) = reported(store, [given])
    assert (found.session_ids, found.rounds, found.confidence) == (["s1"], [1], Confidence.LOW)
    for sessions in ([], ["s1", "ghost"]):
        with pytest.raises(DataError):
            reported(store, [ReportedFinding(title="x", skill=None, session_ids=sessions)])


def test_a_report_reads_as_markdown(store: TraceStore, send: Send) -> None:
    session(store, send, "s1", 1, recovers=True)
    text = render(analyse(store, "rllm", "round one", round_number=1))
    assert text.startswith("# round one\n")
    assert "| 1 | 1 | 1 of 3 | 1 partial |" in text
    assert "confidence: low" in text
    assert "`s1`" in text
