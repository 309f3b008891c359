"""A patch earns its place: what is refused, what is measured, what a decision changes on disk and what it leaves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.evolution.skillbank import Patch, PatchStatus, SkillBankError
from astraflow.evolution.traces.findings import Suggestion
from astraflow.evolution.traces.optimizer import Optimizer, RefusedError, Threshold
from astraflow.evolution.traces.store import TraceStore
from tests.evolution.traces.conftest import SKILL, Send

GOOD = '- When `lookup` fails with "unknown account …": call `normalise`, then `lookup` again.'
THRESHOLD = Threshold()


def suggestion(**changes: Any) -> Suggestion:
    given: dict[str, Any] = {
        "skill": SKILL,
        "target_section": "pitfalls",
        "action": "append",
        "description": "normalise names",
        "content": GOOD,
        "session_ids": ["s1"],
        "confidence": "high",  # a claim: the sessions decide
    }
    return Suggestion(**{**given, **changes})


@pytest.fixture(autouse=True)
def evidence(store: TraceStore, send: Send) -> None:
    (store.rounds / "round_2").mkdir(parents=True)
    send("PostToolUse", tool_name="Read")


@pytest.fixture
def proposed(optimizer: Optimizer) -> Patch:
    return optimizer.propose(suggestion())


def scores(before: float, after: float, cases: int = 8) -> Callable[[str], dict[str, float]]:
    """Scores that depend on whether the good line is in the skill."""
    return lambda text: {f"c{n}": after if GOOD in text else before for n in range(cases)}


def output(optimizer: Optimizer) -> bytes:
    return optimizer.shelf.output(SKILL).read_bytes()


def bank_files(optimizer: Optimizer) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in optimizer.shelf.root.rglob("*") if path.is_file()}


def test_a_suggestion_becomes_a_patch_file_that_is_not_active(optimizer: Optimizer, proposed: Patch) -> None:
    assert proposed.status is PatchStatus.PROPOSED
    assert proposed.file.parent == optimizer.shelf.root.resolve() / "rllm" / SKILL / "patches"
    assert proposed.extra["source_sessions"] == ["s1"]
    assert (proposed.extra["confidence"], proposed.extra["evidence_rounds"]) == ("low", [2])
    assert not optimizer.shelf.is_active(SKILL, proposed.id)
    assert GOOD not in optimizer.shelf.view(SKILL).text
    assert optimizer.propose(suggestion()).id == proposed.id


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"skill": "traj-loop"}, "traj skill"),
        ({"skill": "rllm-none"}, "unknown skill"),
        ({"target_section": "nowhere"}, "no section 'nowhere'"),
        ({"action": "delete"}, "unknown action"),
        ({"session_ids": []}, "no evidence"),
        ({"session_ids": ["ghost"]}, "does not exist"),
        ({"content": "  \n"}, "no text"),
    ],
)
def test_what_is_refused_changes_nothing(optimizer: Optimizer, changes: dict[str, Any], message: str) -> None:
    before = bank_files(optimizer)
    with pytest.raises(RefusedError, match=message):
        optimizer.propose(suggestion(**changes))
    assert bank_files(optimizer) == before


def test_a_patch_with_an_effect_is_accepted_and_compiled(optimizer: Optimizer, proposed: Patch) -> None:
    measured = optimizer.evaluate(SKILL, proposed.id, scores(0.25, 1.0))
    assert measured.comparison.effect == 0.75
    assert optimizer.shelf.patch(SKILL, proposed.id).status is PatchStatus.EVALUATED
    assert optimizer.decide(SKILL, proposed.id, THRESHOLD) is PatchStatus.ACCEPTED
    assert GOOD.encode() in output(optimizer)
    assert [step.status for step in optimizer.record(SKILL, proposed.id).history] == [
        "proposed",
        "evaluated",
        "accepted",
    ]


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (scores(1.0, 0.0), "is below"),
        (scores(0.5, 0.5), "is below"),
        (scores(0.5, 0.54), "is below"),
        (scores(0.0, 1.0, cases=3), "may be chance"),
    ],
    ids=["harmful", "nothing", "too little", "too few cases"],
)
def test_without_the_effect_it_is_rejected_and_the_skill_stays(
    optimizer: Optimizer, proposed: Patch, score: Callable[[str], dict[str, float]], reason: str
) -> None:
    before = output(optimizer)
    optimizer.evaluate(SKILL, proposed.id, score)
    with pytest.raises(RefusedError, match=reason):
        optimizer.accept(SKILL, proposed.id, THRESHOLD)
    assert optimizer.decide(SKILL, proposed.id, THRESHOLD) is PatchStatus.REJECTED
    optimizer.shelf.write(SKILL)
    assert output(optimizer) == before
    assert not optimizer.shelf.is_active(SKILL, proposed.id)
    assert optimizer.propose(suggestion()).status is PatchStatus.REJECTED  # the same idea is not new
    optimizer.archive(SKILL, proposed.id, "old")
    assert optimizer.shelf.patch(SKILL, proposed.id).status is PatchStatus.ARCHIVED


def test_an_unmeasured_patch_needs_force_and_a_reason(optimizer: Optimizer, proposed: Patch) -> None:
    for reason in (None, "", "  "):
        with pytest.raises(RefusedError, match="never evaluated"):
            optimizer.accept(SKILL, proposed.id, THRESHOLD, reason)
    optimizer.accept(SKILL, proposed.id, THRESHOLD, "the desk changed")
    assert "forced: the desk changed" in optimizer.record(SKILL, proposed.id).history[-1].reason


def test_a_measurement_of_another_skill_text_or_patch_text_does_not_count(
    optimizer: Optimizer, proposed: Patch
) -> None:
    optimizer.evaluate(SKILL, proposed.id, scores(0.0, 1.0))
    proposed.file.write_text(proposed.file.read_text("utf-8").replace("normalise`, then", "convert`, then"), "utf-8")
    assert "the patch has changed" in (optimizer.objection(SKILL, proposed.id, THRESHOLD) or "")
    base = optimizer.shelf.root / "rllm" / SKILL / "base.md"
    base.write_text(base.read_text("utf-8").replace("Each tool", "Every tool"), "utf-8")
    assert "the skill has changed" in (optimizer.objection(SKILL, proposed.id, THRESHOLD) or "")
    with pytest.raises(RefusedError, match="evaluate it"):
        optimizer.decide(SKILL, proposed.id, THRESHOLD)
    assert optimizer.shelf.patch(SKILL, proposed.id).status is PatchStatus.EVALUATED


def test_a_hand_edited_skill_is_not_overwritten_by_an_acceptance(optimizer: Optimizer, proposed: Patch) -> None:
    optimizer.evaluate(SKILL, proposed.id, scores(0.0, 1.0))
    file = optimizer.shelf.output(SKILL)
    file.write_text(file.read_text("utf-8") + "\nMine.\n", "utf-8")
    with pytest.raises(SkillBankError):
        optimizer.accept(SKILL, proposed.id, THRESHOLD)
    assert file.read_text("utf-8").endswith("Mine.\n")
    assert not optimizer.shelf.is_active(SKILL, proposed.id)
    assert optimizer.shelf.patch(SKILL, proposed.id).status is PatchStatus.EVALUATED


def test_a_rollback_brings_the_former_skill_back_byte_for_byte(optimizer: Optimizer, proposed: Patch) -> None:
    before = output(optimizer)
    optimizer.evaluate(SKILL, proposed.id, scores(0.0, 1.0))
    optimizer.accept(SKILL, proposed.id, THRESHOLD)
    assert output(optimizer) != before
    optimizer.roll_back(SKILL, proposed.id, "no good")
    assert output(optimizer) == before
    assert optimizer.shelf.patch(SKILL, proposed.id).status is PatchStatus.ARCHIVED
    with pytest.raises(RefusedError, match="nothing to roll back"):
        optimizer.roll_back(SKILL, proposed.id, "again")


def test_a_patch_that_another_one_needs_cannot_be_rolled_back(optimizer: Optimizer, proposed: Patch) -> None:
    optimizer.accept(SKILL, proposed.id, THRESHOLD, "for the test")
    other = optimizer.propose(suggestion(content="Mind the cents.", description="cents"))
    optimizer.shelf.set_fields(SKILL, other.id, depends_on=[proposed.id])
    optimizer.accept(SKILL, other.id, THRESHOLD, "for the test")
    before = output(optimizer)
    with pytest.raises(SkillBankError, match="depends on"):
        optimizer.roll_back(SKILL, proposed.id, "no good")
    assert optimizer.shelf.is_active(SKILL, proposed.id)
    assert optimizer.shelf.write(SKILL).read_bytes() == before


def test_a_regression_rolls_the_latest_patch_back(optimizer: Optimizer, proposed: Patch) -> None:
    optimizer.evaluate(SKILL, proposed.id, scores(0.0, 1.0))
    optimizer.accept(SKILL, proposed.id, THRESHOLD)
    assert optimizer.roll_back_regression(SKILL, scores(0.0, 1.0), THRESHOLD) is None
    assert optimizer.roll_back_regression(SKILL, scores(0.0, 1.0, cases=5), THRESHOLD) is None  # other cases
    assert optimizer.roll_back_regression(SKILL, scores(0.0, 0.6), THRESHOLD) == proposed.id
    assert not optimizer.shelf.is_active(SKILL, proposed.id)
    assert optimizer.roll_back_regression(SKILL, scores(0.0, 0.0), THRESHOLD) is None


def test_an_acceptance_that_was_cut_off_is_finished(optimizer: Optimizer, proposed: Patch) -> None:
    optimizer.evaluate(SKILL, proposed.id, scores(0.0, 1.0))
    optimizer.shelf.set_fields(SKILL, proposed.id, status="accepted")  # killed before the manifest was written
    assert optimizer.finish_interrupted(SKILL) == [proposed.id]
    assert GOOD.encode() in output(optimizer)
    assert optimizer.finish_interrupted(SKILL) == []


@pytest.mark.parametrize(
    ("status", "step"),
    [("accepted", "evaluate"), ("rejected", "evaluate"), ("archived", "reject"), ("proposed", "archive")],
)
def test_a_step_that_does_not_follow_is_refused(optimizer: Optimizer, proposed: Patch, status: str, step: str) -> None:
    optimizer.shelf.set_fields(SKILL, proposed.id, status=status)
    argument = scores(0.0, 1.0) if step == "evaluate" else "because"
    with pytest.raises(RefusedError, match="cannot become"):
        getattr(optimizer, step)(SKILL, proposed.id, argument)
