"""Compiled skills become files: only what differs, never over a hand's work, one skill's failure is its own."""

import pytest

from astraflow.evolution.skillbank import Bank, Code, Outcome, write_skills
from astraflow.evolution.skillbank.output import diff


def outcomes(bank: Bank, **options) -> dict[str, str]:
    return {result.skill: str(result.outcome) for result in write_skills(bank, list(bank.skills), **options).results}


def versions(files) -> list[str]:
    return sorted(path.name for path in (files.root / "compiled").glob("*"))


def test_twice_is_byte_identical_and_makes_no_new_snapshot(make_bank, snapshot_of_tree) -> None:
    files = make_bank({"one": ["p"], "two": []})
    first = write_skills(files.load(), ["one", "two"])
    assert (first.snapshot, first.new_snapshot) == ("v001", True)
    before = snapshot_of_tree(files.repository)
    second = write_skills(files.load(), ["one", "two"])
    assert (second.snapshot, second.new_snapshot) == ("v001", False)
    assert [result.outcome for result in second.results] == [Outcome.UNCHANGED, Outcome.UNCHANGED]
    assert snapshot_of_tree(files.repository) == before


def test_a_change_makes_one_whole_new_snapshot(make_bank) -> None:
    files = make_bank({"one": [], "two": []})
    write_skills(files.load(), ["one", "two"])
    files.manifest("one", active=["p"])
    files.patch("one", "p")
    assert write_skills(files.load(), ["one"]).snapshot == "v002"
    folder = files.root / "compiled" / "v002" / "rllm"
    assert (folder / "one.md").read_bytes() == files.output("one").read_bytes()
    assert (folder / "two.md").read_bytes() == files.output("two").read_bytes()


def test_snapshots_are_numbered_beyond_999(make_bank) -> None:
    files = make_bank()
    (files.root / "compiled" / "v999" / "rllm").mkdir(parents=True)
    (files.root / "compiled" / "v1000").mkdir()
    (files.root / "compiled" / "notes").mkdir()
    assert write_skills(files.load(), ["one"]).snapshot == "v1001"


def test_of_all_the_good_are_written_and_the_bad_ones_file_stays(make_bank) -> None:
    files = make_bank({"one": [], "two": [], "three": []})
    write_skills(files.load(), ["one", "two", "three"])
    old = files.output("two").read_bytes()
    for name in ("one", "two", "three"):
        files.manifest(name, active=["p"])
        files.patch(name, "p", action="merge" if name == "two" else "append")
    report = write_skills(files.load(), ["one", "two", "three"])
    assert [result.outcome for result in report.results] == [Outcome.WRITTEN, Outcome.FAILED, Outcome.WRITTEN]
    assert [(problem.code, problem.ids) for problem in report.problems] == [(Code.UNKNOWN_ACTION, ("p",))]
    assert files.output("two").read_bytes() == old
    assert "Text of p" in files.output("three").read_text()
    # the bad one's last text stays known, so that a repaired source may write it again
    assert (files.root / "compiled/v002/rllm/two.md").read_bytes() == old
    files.patch("two", "p")
    assert outcomes(files.load()) == {"one": "unchanged", "two": "written", "three": "unchanged"}


def test_a_hand_edited_file_is_kept_without_force(make_bank) -> None:
    files = make_bank({"one": [], "two": []})
    write_skills(files.load(), ["one", "two"])
    files.output("one").write_text("mine\n")
    files.manifest("one", active=["p"])
    files.patch("one", "p")
    report = write_skills(files.load(), ["one", "two"])
    assert [result.outcome for result in report.results] == [Outcome.HAND_EDITED, Outcome.UNCHANGED]
    assert [(problem.code, problem.ids) for problem in report.problems] == [(Code.HAND_EDITED, ("one",))]
    assert files.output("one").read_text() == "mine\n"
    assert versions(files) == ["v001"]
    assert outcomes(files.load(), force=True) == {"one": "written", "two": "unchanged"}
    assert "Text of p" in files.output("one").read_text()


def test_a_file_that_the_compiler_never_wrote_is_somebodys(make_bank) -> None:
    files = make_bank()
    files.output("one").parent.mkdir(parents=True)
    files.output("one").write_text("written by hand\n")
    assert outcomes(files.load()) == {"one": "hand_edited"}


def test_a_hand_edit_that_equals_the_sources_is_no_edit(make_bank) -> None:
    files = make_bank()
    write_skills(files.load(), ["one"])
    files.manifest("one", active=["p"])
    files.patch("one", "p")
    files.output("one").write_text(files.output("one").read_text().replace("intro.\n", "intro.\n\nText of p.\n"))
    assert outcomes(files.load()) == {"one": "unchanged"}


def test_an_older_text_of_the_compiler_is_no_edit(make_bank) -> None:
    files = make_bank({"one": []})
    write_skills(files.load(), ["one"])
    first = files.output("one").read_bytes()
    files.manifest("one", active=["p"])
    files.patch("one", "p")
    write_skills(files.load(), ["one"])
    files.output("one").write_bytes(first)  # as after a crash between record and file, or a checkout
    assert outcomes(files.load()) == {"one": "written"}


def test_force_overwrites_what_is_no_text_too(make_bank) -> None:
    files = make_bank({"one": []})
    files.output("one").parent.mkdir(parents=True)
    files.output("one").write_bytes(b"\xff\xfe")
    assert outcomes(files.load()) == {"one": "hand_edited"}
    assert outcomes(files.load(), force=True) == {"one": "written"}


def test_a_folder_in_the_files_place_is_that_skills_problem(make_bank) -> None:
    files = make_bank({"one": [], "two": []})
    files.output("one").mkdir(parents=True)
    report = write_skills(files.load(), ["one", "two"])
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.WRITTEN]
    assert [(problem.code, problem.ids) for problem in report.problems] == [(Code.INPUT_OUTPUT, ("one",))]


def test_a_dry_run_says_what_would_be_and_changes_nothing(make_bank, snapshot_of_tree) -> None:
    files = make_bank({"one": ["p"], "two": []})
    before = snapshot_of_tree(files.repository)
    assert outcomes(files.load(), dry_run=True) == {"one": "written", "two": "written"}
    assert snapshot_of_tree(files.repository) == before


def test_a_profile_for_several_is_taken_where_it_is_defined(make_bank) -> None:
    files = make_bank({"one": ["a"], "two": ["b"]})
    files.manifest("one", active=["a"], profiles={"small": {"active": []}})
    report = write_skills(files.load(), ["one", "two"], "small", where_defined=True)
    assert report.problems == ()
    assert "Text of a" not in files.output("one").read_text()
    assert "Text of b" in files.output("two").read_text()
    assert [p.code for p in write_skills(files.load(), ["two"], "small").problems] == [Code.UNKNOWN_SKILL]


def test_what_the_system_refuses_is_that_skills_problem(make_bank) -> None:
    files = make_bank({"one": [], "two": []})
    files.output("one").parent.parent.mkdir(parents=True)
    files.output("one").parent.write_text("a file where a folder must be")
    report = write_skills(files.load(), ["one", "two"])
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.WRITTEN]
    assert report.problems[0].ids == ("one",)


def test_diff_goes_from_the_file_to_the_sources(make_bank) -> None:
    files = make_bank({"one": []})
    assert diff(files.load(), "one").startswith("--- /dev/null\n")
    write_skills(files.load(), ["one"])
    assert diff(files.load(), "one") == ""
    files.patch("one", "p")
    files.manifest("one", active=["p"])
    assert "\n+Text of p.\n" in diff(files.load(), "one")


@pytest.mark.parametrize("output", ["../../x/SKILL.md", "skills/x.md"])
def test_an_output_that_is_refused_is_not_written(make_bank, output: str, snapshot_of_tree) -> None:
    files = make_bank({"one": []})
    files.groups["rllm"]["one"]["output"] = output
    bank = files.write().load()
    before = snapshot_of_tree(files.repository.parent)
    report = write_skills(bank, ["one"])
    assert [result.outcome for result in report.results] == [Outcome.FAILED]
    assert snapshot_of_tree(files.repository.parent) == before
