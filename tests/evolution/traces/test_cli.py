"""The `traj` command as a user runs it, and the settings that it prints for a coding agent."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from astraflow.evolution.traces.capture import ROOT_VARIABLE
from astraflow.evolution.traces.cli.main import app
from astraflow.evolution.traces.payload import TYPES
from astraflow.evolution.traces.rounds import Rounds, RoundStatus
from astraflow.evolution.traces.shelf import SkillShelf
from astraflow.evolution.traces.store import TraceStore
from tests.evolution.traces.conftest import PRACTICE, REPOSITORY, SKILL, Send


@pytest.fixture(autouse=True)
def in_repository(monkeypatch: pytest.MonkeyPatch, store: TraceStore) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv(ROOT_VARIABLE, str(store.root))


def traj(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astraflow.evolution.traces.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_from_capture_to_an_accepted_patch_step_by_step(store: TraceStore, shelf: SkillShelf) -> None:
    traj("loop", "--rounds", 1, "--bank", shelf.root, "--min-effect", 2)  # records, and accepts nothing
    assert "12 sessions, 12 traces" in traj("segment")
    bank = ("--bank", shelf.root)
    assert "5 problems, 2 suggestions" in traj("analyze", "--skill", SKILL, *bank)
    proposed = traj("optimize", "propose", "--skill", SKILL, *bank)
    assert "rejected" in proposed  # the loop has judged them
    patches = json.loads(traj("optimize", "list", "--skill", SKILL, "--json", *bank))
    assert {patch["status"] for patch in patches} == {"rejected"}
    own = {
        "skill": SKILL,
        "target_section": "pitfalls",
        "action": "prepend",
        "description": "mine",
        "content": '- When `lookup` fails with "unknown account …": call `normalise`.',
        "session_ids": [store.sessions()[0]],
    }
    file = store.root / "mine.json"
    file.write_text(json.dumps(own), "utf-8")
    patch = traj("optimize", "propose", "--skill", SKILL, "--suggestion", file, *bank).split()[0]
    common = (patch, "--skill", SKILL, *bank)
    assert "effect +0." in traj("optimize", "evaluate", *common, "--tasks", PRACTICE / "tasks.json")
    assert "accepted" in traj("optimize", "accept", *common)
    assert "archived" in traj("optimize", "rollback", *common, "--reason", "for the test")


def test_status_shows_sessions_rounds_and_reports(store: TraceStore, shelf: SkillShelf) -> None:
    traj("loop", "--rounds", 1, "--bank", shelf.root)
    text = traj("status")
    assert "12 sessions" in text
    assert "round 1: optimization_complete" in text
    assert f"rllm/reports/{SKILL}_round_1.md" in text
    seen: dict[str, Any] = json.loads(traj("status", "--rebuild", "--json"))
    assert len(seen["sessions"]) == 12
    assert seen["rounds"]["1"]["status"] == "optimization_complete"


def test_the_practice_task_works_on_a_copy(store: TraceStore) -> None:
    before = {path: path.read_bytes() for path in PRACTICE.rglob("*") if path.is_file()}
    assert "accepted" in traj("loop", "--rounds", 1)
    assert {path: path.read_bytes() for path in PRACTICE.rglob("*") if path.is_file()} == before
    assert (store.root / "practice" / "skill-bank" / "skills" / SKILL / "SKILL.md").exists()


def test_the_waiters_exit_codes(store: TraceStore) -> None:
    rounds = Rounds(store.rounds)
    rounds.set_status(1, RoundStatus.TRAINING_COMPLETE)
    rounds.set_status(2, RoundStatus.TRAINING_FAILED)
    traj("wait", "--round", 1, code=0)
    traj("wait", "--round", 2, code=1)
    traj("wait", "--round", 3, "--timeout", 0, code=2)
    traj("wait", "--round", 3, "--stale-after", 0, code=2)
    traj("round", "--round", 1, "--set", "optimization_complete")
    traj("wait", "--round", 1, "--for", "optimization_complete", code=0)


def test_a_transcript_is_imported(tmp_path: Path, store: TraceStore) -> None:
    use = {"type": "tool_use", "id": "u1", "name": "Read", "input": {"file_path": "a"}}
    file = tmp_path / "abc.jsonl"
    file.write_text(json.dumps({"type": "assistant", "message": {"role": "assistant", "content": [use]}}), "utf-8")
    assert "abc: 3 events added" in traj("import", file)
    assert store.sessions() == ["abc"]


def test_findings_of_an_agent_are_taken_into_the_report(tmp_path: Path, send: Send) -> None:
    send("UserPromptExpansion", command_name="rllm-run")
    send("PostToolUse", tool_name="Read")
    file = tmp_path / "findings.json"
    file.write_text(json.dumps([{"title": "reads too late", "skill": "rllm-run", "session_ids": ["s1"]}]), "utf-8")
    traj("segment")
    report = json.loads(traj("analyze", "--findings", file, "--json"))
    assert "reads too late" in [finding["title"] for finding in report["findings"]]


def test_a_wrong_input_is_one_line_and_exit_code_2(shelf: SkillShelf) -> None:
    for arguments, message in [
        (("segment", "ghost"), "no session 'ghost'"),
        (("analyze", "--layer", "x"), "unknown layer"),
        (("loop", "--rounds", 1, "--agent", "chat"), "--endpoint and --model"),
        (("optimize", "list", "--bank", "/nowhere"), "no bank.yaml"),
        (("optimize", "accept", "p", "--skill", SKILL, "--bank", shelf.root, "--force"), "--force needs"),
        (("optimize", "accept", "p", "--skill", SKILL, "--bank", shelf.root), "no patch 'p'"),
    ]:
        done = program(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_printed_settings_run_the_hooks(store: TraceStore) -> None:
    settings = json.loads(traj("hooks"))["hooks"]
    assert set(settings) == set(TYPES)
    for name, entries in settings.items():
        payload = {
            "session_id": "s1",
            "hook_event_name": name,
            "tool_name": "Read",
            "command_name": "x",
            "agent_id": "a",
        }
        for entry in entries:
            for one in entry["hooks"]:
                subprocess.run(one["command"], shell=True, input=json.dumps(payload), text=True, check=True)
    assert len(store.events("s1")) == len(settings)


def test_the_bench_counts_what_it_measures() -> None:
    results = json.loads(traj("bench", "--calls", 2, "--writers", 2, "--json"))
    assert [(one["writers"], one["calls"], one["valid_lines"]) for one in results] == [(1, 2, 2), (2, 4, 4)]
