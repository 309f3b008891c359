"""Rounds are archived with their evidence; what is missing is listed."""

import json

import pytest

from astraflow.evolution.skillbank import SkillBankError
from astraflow.evolution.skillbank.packages import draft_experimental, draft_lineage, parse_rounds


@pytest.fixture
def with_experimental(workshop):
    workshop.make(draft_experimental(workshop.bank, workshop.registry, "e", "math", None))
    return workshop


def archive(workshop, rounds: list[int]):
    return draft_lineage(workshop.bank, workshop.registry, "l", "math", rounds)


def test_a_complete_round_is_archived_whole(with_experimental) -> None:
    with_experimental.round(1, "s1")
    with_experimental.round(10, "s10")
    draft = archive(with_experimental, [1])
    assert draft.warnings == ()
    assert draft.details["rounds"] == [{"round": 1, "sessions": ["s1"], "missing": []}]
    evidence = {name for name in draft.files if not name.startswith("skills/")}
    assert evidence == {
        "rounds/round_1/status.json",
        "rounds/round_1/heartbeat.json",
        "events/round_1/rllm/s1/events.jsonl",
        "trajectories/round_1/rllm/s1/trajectories.jsonl",
        "reports/round_1/rllm/rllm_round_1.md",
    }
    entry = with_experimental.make(draft)
    manifest = json.loads((with_experimental.files.root / "packages/lineage-archive/math/l/manifest.json").read_text())
    assert (str(entry.id), manifest["source"]) == ("lineage:math:l", "experimental:math:e")


def test_missing_evidence_is_listed(with_experimental) -> None:
    with_experimental.round(1)
    traces = with_experimental.repository / "traj_opt/output/rllm"
    (traces / "trajectories/s1/trajectories.jsonl").unlink()
    (traces / "reports/rllm_round_1.md").unlink()
    draft = archive(with_experimental, [1, 2])
    assert draft.details["missing_evidence"] == [
        "round_1: trajectories of session s1",
        "round_1: report",
        "round_2: status.json",
        "round_2: session",
        "round_2: report",
    ]
    assert [problem.ids[1] for problem in draft.warnings] == ["round_1"] * 2 + ["round_2"] * 3


def test_sessions_and_reports_that_a_status_names_are_taken(with_experimental) -> None:
    with_experimental.round(3, "s3")
    traces = with_experimental.repository / "traj_opt/output"
    (traces / "meta/raw/other").mkdir(parents=True)
    (traces / "meta/raw/other/events.jsonl").write_text("{}\n")
    (traces / "meta/reports").mkdir()
    (traces / "meta/reports/notes.md").write_text("#\n")
    status = {"training": {"session_id": "other"}, "sessions": ["../../../etc"], "report_path": "x/y/notes.md"}
    (traces / "rounds/round_3/status.json").write_text(json.dumps(status))
    draft = archive(with_experimental, [3])
    assert draft.details["rounds"][0]["sessions"] == ["other", "s3"]
    assert "reports/round_3/meta/notes.md" in draft.files


def test_without_an_experimental_package_the_source_must_be_named(workshop) -> None:
    with pytest.raises(SkillBankError, match="domain 'math' has no experimental package"):
        archive(workshop, [1])


@pytest.mark.parametrize(
    ("listed", "ranged", "rounds"),
    [("1,2", "", [1, 2]), ("", "1-3", [1, 2, 3]), ("10, 9", "9-9", [9, 10]), ("2,2", "", [2])],
)
def test_rounds_order_by_number(listed: str, ranged: str, rounds: list[int]) -> None:
    assert parse_rounds(listed, ranged) == rounds


@pytest.mark.parametrize(
    ("listed", "ranged"), [("", ""), ("a", ""), ("-1", ""), ("", "3-1"), ("", "1"), ("", "0-99999")]
)
def test_what_is_no_round_is_refused(listed: str, ranged: str) -> None:
    with pytest.raises(SkillBankError):
        parse_rounds(listed, ranged)
