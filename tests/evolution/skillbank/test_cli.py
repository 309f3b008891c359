"""The command: exit codes, --json, what is printed where, options without effect; --dry-run changes nothing."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.evolution.skillbank.cli import main


def run(files, capsys, *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments, "--bank", str(files.root)])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(files, capsys, *arguments: str) -> tuple[int, dict]:
    code, out, err = run(files, capsys, *arguments, "--json")
    assert err == ""
    return code, json.loads(out)


def test_compile_says_what_it_wrote(make_bank, capsys) -> None:
    files = make_bank({"one": ["a"], "two": []})
    code, out, err = run(files, capsys, "--all")
    assert (code, err) == (0, "")
    assert out == (
        "one: wrote .claude/skills/one/SKILL.md\ntwo: wrote .claude/skills/two/SKILL.md\nsnapshot v001 (new)\n"
    )
    assert run(files, capsys, "--group", "rllm")[1].endswith("snapshot v001 (unchanged)\n")
    assert run(files, capsys, "one")[0] == 0


def test_an_error_is_one_line_with_ids_and_exit_code_1(make_bank, capsys) -> None:
    files = make_bank({"one": ["a"], "two": []})
    files.patch("one", "a", depends_on=["b"])
    code, out, err = run(files, capsys, "--all")
    assert code == 1
    assert "two: wrote" in out
    assert err.startswith("error: ")
    assert "a.md: patch 'a' depends on 'b', which is not active" in err
    code, said = as_json(files, capsys, "--all")
    assert (code, said["ok"]) == (1, False)
    assert [(e["code"], e["ids"]) for e in said["errors"]] == [("inactive_dependency", ["a", "b"])]
    assert [(s["skill"], s["outcome"]) for s in said["skills"]] == [("one", "failed"), ("two", "unchanged")]


def test_a_warning_is_no_failure(make_bank, capsys) -> None:
    files = make_bank({"one": ["a"]})
    files.patch("one", "a", status="deprecated")
    code, _, err = run(files, capsys, "one")
    assert (code, err.startswith("warning: ")) == (0, True)


def test_a_malformed_anchor_has_its_line_in_json(make_bank, capsys) -> None:
    files = make_bank()
    files.skill("one", base="---\nname: one\ndescription: d\n---\n<!-- /section:x -->\n")
    code, said = as_json(files, capsys, "one")
    assert (code, said["errors"][0]["code"], said["errors"][0]["line"]) == (1, "malformed_anchor", 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a skill, or give --group G or --all"),
        (("one", "--all"), "give one of NAME, --group and --all"),
        (("--validate", "one"), "NAME has no effect with --validate"),
        (("--status", "-p", "x"), "--profile has no effect with --status"),
        (("--squash",), "--squash needs one skill"),
        (("--explain", "intro"), "--explain needs one skill"),
        (("one", "--domain", "math"), "--domain has no effect with --compile"),
        (("--package", "stable"), "--package stable needs --name"),
        (("--package", "stable", "--name", "x", "--review"), "--review has no effect"),
        (("--package", "vertical", "--name", "x"), "--package vertical needs --domain"),
        (("--package", "task-package", "--name", "x"), "needs one of --run-id and --run-dir"),
        (("--package", "wrong"), "invalid choice"),
        (("--valid",), "unrecognized arguments"),
        (("--validate", "--status"), "not allowed with"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(make_bank, capsys, arguments: tuple[str, ...], message: str) -> None:
    files = make_bank()
    with pytest.raises(SystemExit) as stopped:
        run(files, capsys, *arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_no_bank_is_an_error_with_its_place(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--validate"]) == 1
    assert "no skill-bank/bank.yaml here or above" in capsys.readouterr().err


def test_the_nearest_bank_is_the_default(make_bank, capsys, monkeypatch) -> None:
    files = make_bank()
    monkeypatch.chdir(files.root / "rllm")
    assert main(["one"]) == 0
    assert files.output("one").is_file()


def test_a_reader_that_has_seen_enough_is_no_error(make_bank, monkeypatch) -> None:
    files = make_bank()
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["one", "--bank", str(files.root)]) == 0
    assert files.output("one").is_file()


def test_looking_commands(make_bank, capsys) -> None:
    files = make_bank({"one": ["a"]})
    assert "+Text of a." in run(files, capsys, "one", "--diff")[1]
    assert "one                  missing      1 accepted; active: a" in run(files, capsys, "--status")[1]
    run(files, capsys, "--all")
    assert run(files, capsys, "one", "--diff")[1] == "one: no difference\n"
    assert run(files, capsys, "--validate")[:2] == (0, "1 skills: 0 errors, 0 warnings\n")
    explained = run(files, capsys, "one", "--explain", "intro")[1]
    assert "── a (append, accepted) — a.md:7" in explained
    assert "   | Text of a." in explained
    code, said = as_json(files, capsys, "one", "--explain", "intro")
    assert (code, [part["origin"] for part in said["parts"]]) == (0, ["base", "a"])
    assert run(files, capsys, "one", "--explain", "nowhere")[0] == 1
    assert run(files, capsys, "--list-packages")[1].startswith("[stable]\n  none\n")
    assert run(files, capsys, "--smoke-test")[:2] == (0, "bank: ok\n")
    assert run(files, capsys, "--select")[0] == 1


def finished_run(folder: Path) -> None:
    for name, text in (
        ("config.json", '{"task": "math"}'),
        ("training_log.txt", "Training Report\n"),
        ("trajectories/step_0001.jsonl", "{}\n"),
        ("eval_metrics.json", '{"accuracy": 0.5}'),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


EXPERIMENTAL = ("--package", "experimental", "--name", "e", "--domain", "math")
TASK = ("--package", "task-package", "--name", "t", "--run-id", "r1")
LINEAGE = ("--package", "lineage-archive", "--name", "l", "--domain", "math", "--round", "1")
VERTICAL = ("--package", "vertical", "--name", "v", "--domain", "math")


def test_the_life_of_packages_and_that_a_dry_run_of_each_changes_nothing(make_bank, capsys, snapshot_of_tree) -> None:
    files = make_bank({"one": ["a"]})
    finished_run(files.repository / "rllm_train/output/runs/r1")
    status = files.repository / "traj_opt/output/rounds/round_1/status.json"
    status.parent.mkdir(parents=True)
    status.write_text('{"round": 1}')
    run(files, capsys, "--all")
    for operation in (("--package", "stable", "--name", "s"), EXPERIMENTAL, TASK, LINEAGE, VERTICAL):
        before = snapshot_of_tree(files.repository)
        code, planned = as_json(files, capsys, *operation, "--dry-run")
        assert (code, planned["dry_run"]) == (0, True)
        assert snapshot_of_tree(files.repository) == before
        code, said = as_json(files, capsys, *operation)
        assert (code, said["package"]["id"], said["files"]) == (0, planned["package"]["id"], planned["files"])
        assert run(files, capsys, *operation)[0] == 1, "names are not reused"
        assert run(files, capsys, *operation, "--dry-run")[0] == 1
    assert run(files, capsys, "--select", "--domain", "math")[1].startswith("vertical:math:v ")
    assert run(files, capsys, "--select", "--domain", "code")[1].startswith("stable:s ")
    assert run(files, capsys, "--select", "--package-id", "task:t")[1].startswith("task:t ")
    assert run(files, capsys, "--smoke-test")[1] == "bank: ok\nstable:s: ok\nvertical:math:v: ok\n"
    assert run(files, capsys, "--verify", "t")[:2] == (0, "task:t: every file is as it was frozen\n")
    (files.root / "packages/task-packages/t/run/config.json").write_text("{}")
    code, said = as_json(files, capsys, "--verify", "task:t")
    assert (code, [e["ids"] for e in said["errors"]]) == (1, [["task:t", "run/config.json"]])
    assert run(files, capsys, "--validate")[0] == 1
    code, listed = as_json(files, capsys, "--list-packages")
    assert (code, listed["registry"]["vertical"]["math"]["current"]) == (0, "vertical:math:v")


OPTIONS = {
    "--package": ["stable", "experimental", "vertical", "task-package", "lineage-archive"],
    "--name": ["s", "new", "../x", ""],
    "--domain": ["math", "code", "a/b"],
    "--from-package": ["stable:s", "experimental:math:e", "task:t", "nonsense"],
    "--run-id": ["r1", "none", ".."],
    "--run-dir": ["/nowhere"],
    "--round": ["1", "1,x", ""],
    "--round-range": ["1-3", "3-1"],
}
CHOSEN = st.fixed_dictionaries({}, optional={option: st.sampled_from(values) for option, values in OPTIONS.items()})


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, bank_at) -> Any:
    """A bank with a package of each kind, a run and a round."""
    files = bank_at(tmp_path_factory.mktemp("standing")).skill("one")
    finished_run(files.repository / "rllm_train/output/runs/r1")
    status = files.repository / "traj_opt/output/rounds/round_1/status.json"
    status.parent.mkdir(parents=True)
    status.write_text('{"round": 1}')
    for operation in (("--all",), ("--package", "stable", "--name", "s"), EXPERIMENTAL, TASK, LINEAGE, VERTICAL):
        assert main([*operation, "--bank", str(files.root)]) == 0
    return files


@given(chosen=CHOSEN, review=st.booleans())
def test_no_package_operation_changes_anything_under_dry_run(
    chosen: dict[str, str], review: bool, standing, snapshot_of_tree
) -> None:
    before = snapshot_of_tree(standing.repository)
    arguments = [text for option in chosen.items() for text in option]
    try:
        code: object = main([*arguments, "--dry-run", *["--review"] * review, "--bank", str(standing.root)])
    except SystemExit as stopped:
        code = stopped.code
    assert code in (0, 1, 2)
    assert snapshot_of_tree(standing.repository) == before


def test_a_review_prints_json_only_and_a_closed_gate_refuses(make_bank, capsys, snapshot_of_tree) -> None:
    files = make_bank({"one": []})
    run(files, capsys, "--all")
    run(files, capsys, "--package", "stable", "--name", "s")
    run(files, capsys, *EXPERIMENTAL)
    before = snapshot_of_tree(files.repository)
    code, out, err = run(files, capsys, *VERTICAL, "--review")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["may_be_promoted"] is False
    assert [gate["gate"] for gate in said["gates"] if not gate["passed"]] == ["successful_task", "lineage_archive"]
    code, _, err = run(files, capsys, *VERTICAL)
    assert code == 1
    assert "gate 'successful_task' of 'vertical:math:v' is closed: domain 'math' has no task package" in err
    assert snapshot_of_tree(files.repository) == before


def test_a_name_that_several_packages_have_is_asked_back(make_bank, capsys) -> None:
    files = make_bank({"one": []})
    run(files, capsys, "--all")
    for operation in (("--package", "stable", "--name", "e"), EXPERIMENTAL):
        run(files, capsys, *operation)
    code, _, err = run(files, capsys, "--verify", "e")
    assert (code, "stable:e, experimental:math:e" in err) == (1, True)
    assert "no package has the name 'x': stable:e" in run(files, capsys, "--verify", "x")[2]


def test_squash_and_dry_runs_of_skills(make_bank, capsys, snapshot_of_tree) -> None:
    files = make_bank({"one": ["a"]})
    before = snapshot_of_tree(files.repository)
    assert "Text of a." in run(files, capsys, "one", "--dry-run")[1]
    assert run(files, capsys, "one", "--squash", "--dry-run")[1] == "one: a would become part of the base\n"
    assert snapshot_of_tree(files.repository) == before
    assert run(files, capsys, "one", "--squash")[1] == "one: a became part of the base\n"
    assert run(files, capsys, "one", "--squash")[1] == "one: no active patches\n"


def test_a_profile_of_a_group_must_be_known_to_one_of_it(make_bank, capsys) -> None:
    files = make_bank({"one": ["a"], "two": []})
    files.manifest("one", active=["a"], profiles={"small": {"active": []}})
    assert run(files, capsys, "--all", "-p", "small")[0] == 0
    assert "Text of a" not in files.output("one").read_text()
    assert "no skill here has the profile 'large'" in run(files, capsys, "--all", "-p", "large")[2]
    assert run(files, capsys, "--all", "-p", "small", "--diff")[1] == "one: no difference\ntwo: no difference\n"
