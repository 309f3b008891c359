"""The closed loop: it learns what helps, rejects what harms, survives kills, and follows its policy after failures."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.errors import DataError
from astraflow.evolution.skillbank import PatchStatus
from astraflow.evolution.traces.chat import ChatEndpoint
from astraflow.evolution.traces.findings import Suggestion
from astraflow.evolution.traces.loop import Loop, LoopSettings, OnFailure
from astraflow.evolution.traces.optimizer import Optimizer
from astraflow.evolution.traces.practice.agents import ScriptedAgent
from astraflow.evolution.traces.practice.desk import Tasks
from astraflow.evolution.traces.proposers import PROPOSERS, Context
from astraflow.evolution.traces.proposers.base import suggest
from astraflow.evolution.traces.rounds import Rounds, RoundStatus, WaitResult
from astraflow.evolution.traces.shelf import SkillShelf
from astraflow.evolution.traces.store import TraceStore
from tests.evolution.traces.conftest import REPOSITORY, SKILL, FakeServer, Model

NORMALISE = "call `normalise`, then `lookup` again"
CONVERT = "call `convert`, then `submit` again"


class HarmfulProposer:
    """Suggests, with real evidence, to throw a case away when it gets difficult."""

    def propose(self, context: Context) -> list[Suggestion]:
        line = '- When `lookup` fails with "unknown account …": call `discard`, then `lookup` again.'
        return [suggest(context.view, context.own_findings(), "pitfalls", "prepend", "discard", line, "harmful")]


class TwiceProposer:
    """Suggests two rewrites of one section, which cannot both be part of the skill."""

    def propose(self, context: Context) -> list[Suggestion]:
        line = f'- When `lookup` fails with "unknown account …": {NORMALISE}.'
        found = (context.own_findings(), "pitfalls", "replace")
        return [suggest(context.view, *found, f"rewrite {n}", f"{line}\n\nVersion {n}.", "twice") for n in (1, 2)]


PROPOSERS.register("test-harmful")(HarmfulProposer)
PROPOSERS.register("test-twice")(TwiceProposer)


@pytest.fixture
def make(optimizer: Optimizer, tasks: Tasks) -> Callable[..., Loop]:
    def loop(ask: Any = None, **changes: Any) -> Loop:
        settings = LoopSettings(**{"skill": SKILL, "rounds": 2, **changes})
        return Loop(optimizer, tasks, ScriptedAgent(), settings, ask=ask)

    return loop


def detail(loop: Loop, number: int) -> dict[str, Any]:
    status = loop.rounds.status(number)
    assert status is not None
    assert status.status is RoundStatus.OPTIMIZATION_COMPLETE
    return json.loads((loop.rounds.path(number) / "result.json").read_bytes())


def test_two_rounds_learn_two_things_each_measured_and_used(make: Callable[..., Loop], optimizer: Optimizer) -> None:
    loop = make()
    assert loop.both() is WaitResult.COMPLETE
    first, second = detail(loop, 1), detail(loop, 2)
    assert [patch["status"] for patch in first["patches"] + second["patches"]] == ["accepted", "accepted"]
    assert all(patch["effect"] >= 0.05 for patch in first["patches"] + second["patches"])
    assert first["held_out_score"] < second["held_out_score"] == 1.0
    text = optimizer.shelf.output(SKILL).read_text("utf-8")
    assert NORMALISE in text
    assert CONVERT in text
    # round 2 worked by what round 1 taught: no trace of it fails on a lookup for want of a remedy
    for trace in optimizer.store.traces("rllm"):
        steps = [(call.tool_name, call.success) for call in trace.tool_calls]
        if trace.round == 2 and ("lookup", False) in steps:
            assert steps[steps.index(("lookup", False)) + 1] == ("normalise", True)


def test_every_suggestion_of_a_report_has_sessions_that_exist(make: Callable[..., Loop], store: TraceStore) -> None:
    make(rounds=1).both()
    report = json.loads(store.report_path("rllm", f"{SKILL}_round_1").with_suffix(".json").read_bytes())
    assert report["suggestions"]
    for one in report["suggestions"] + report["findings"]:
        assert one["session_ids"]
        assert set(one["session_ids"]) <= set(store.sessions())


def test_a_harmful_patch_is_rejected_and_the_skill_stays(make: Callable[..., Loop], optimizer: Optimizer) -> None:
    before = optimizer.shelf.output(SKILL).read_bytes()
    loop = make(rounds=1, proposers=["test-harmful"])
    assert loop.both() is WaitResult.COMPLETE
    (patch,) = detail(loop, 1)["patches"]
    assert patch["status"] == PatchStatus.REJECTED
    assert patch["effect"] < 0
    assert optimizer.shelf.output(SKILL).read_bytes() == before
    assert optimizer.shelf.view(SKILL).text.encode() == before


def test_a_patch_that_does_not_go_with_an_accepted_one_is_rejected(make: Callable[..., Loop]) -> None:
    loop = make(rounds=1, proposers=["test-twice"], patches_a_round=2)
    assert loop.both() is WaitResult.COMPLETE
    assert [patch["status"] for patch in detail(loop, 1)["patches"]] == ["accepted", "rejected"]


def test_a_skill_that_cannot_be_compiled_is_a_failed_training(make: Callable[..., Loop], shelf: SkillShelf) -> None:
    file = shelf.output(SKILL)
    file.write_text(file.read_text("utf-8") + "\nMine.\n", "utf-8")
    loop = make(rounds=1)
    assert loop.both() is WaitResult.FAILED
    assert "edited by hand" in loop.rounds.status(1).detail


def test_held_out_cases_leave_no_trace(make: Callable[..., Loop], store: TraceStore, tasks: Tasks) -> None:
    make(rounds=1).both()
    held_out = {case.case_id for case in tasks.held_out}
    assert len(store.sessions()) == len(tasks.train)
    assert not any(case in session for session in store.sessions() for case in held_out)


@pytest.mark.parametrize("proposer", ["pareto", "playbook"])
def test_search_and_playbook_close_the_loop_too(make: Callable[..., Loop], proposer: str) -> None:
    loop = make(rounds=1, proposers=[proposer], patches_a_round=2)
    assert loop.both() is WaitResult.COMPLETE
    assert "accepted" in [patch["status"] for patch in detail(loop, 1)["patches"]]


def test_a_model_closes_the_loop_too(make: Callable[..., Loop], serve: Callable[[Model], FakeServer]) -> None:
    def model(body: dict[str, Any]) -> dict[str, str]:
        prompt = body["messages"][0]["content"]
        found = next(line for line in prompt.splitlines() if "until `normalise` is called" in line)
        idea = {
            "target_section": "pitfalls",
            "action": "append",
            "description": "normalise names",
            "content": f'- When `lookup` fails with "unknown account …": {NORMALISE}.',
            "finding_ids": [found.split()[1]],
        }
        return {"content": json.dumps([idea])}

    loop = make(ChatEndpoint(serve(model).url, "m").ask, rounds=1, proposers=["reflect"])
    assert loop.both() is WaitResult.COMPLETE
    assert [patch["status"] for patch in detail(loop, 1)["patches"]] == ["accepted"]


def test_an_optimisation_that_is_done_again_accepts_nothing_more(make: Callable[..., Loop], shelf: SkillShelf) -> None:
    loop = make(rounds=1)
    loop.both()
    before = shelf.view(SKILL).text
    again = loop.optimise(1)
    assert (again.patches, again.rolled_back) == ([], None)
    assert shelf.view(SKILL).text == before


FAILS_AT_FIRST = """
import pathlib, sys
calls = pathlib.Path(sys.argv[1])
calls.write_text(calls.read_text() + sys.argv[2] + "\\n" if calls.exists() else sys.argv[2] + "\\n")
sys.exit(len(calls.read_text().split()) <= int(sys.argv[3]))
"""


def training(folder: Path, failures: int) -> list[str]:
    return [sys.executable, "-c", FAILS_AT_FIRST, str(folder / "calls"), "{round}", str(failures)]


@pytest.mark.parametrize(
    ("policy", "failures", "result", "calls"),
    [
        (OnFailure.STOP, 1, WaitResult.FAILED, ["1"]),
        (OnFailure.RETRY, 1, WaitResult.COMPLETE, ["1", "1", "2"]),
        (OnFailure.RETRY, 9, WaitResult.FAILED, ["1", "1", "1"]),
    ],
)
def test_a_failed_training_leads_on_by_policy(
    make: Callable[..., Loop], tmp_path: Path, policy: OnFailure, failures: int, result: WaitResult, calls: list[str]
) -> None:
    loop = make(on_failure=policy, retries=2, train_command=training(tmp_path, failures))
    assert loop.both() is result
    assert (tmp_path / "calls").read_text("utf-8").split() == calls
    status = loop.rounds.status(1)
    assert status is not None
    if result is WaitResult.FAILED:
        assert (status.status, status.will_retry, status.attempt) == (RoundStatus.TRAINING_FAILED, False, len(calls))
        assert status.detail == "exit code 1"
    else:
        assert status.attempt == 2


def test_a_training_command_that_is_not_there_is_a_failed_training(make: Callable[..., Loop]) -> None:
    loop = make(train_command=["/no/such/program"])
    assert loop.both() is WaitResult.FAILED
    assert "No such file" in loop.rounds.status(1).detail


def test_held_out_cases_may_not_be_training_cases(optimizer: Optimizer, tasks: Tasks) -> None:
    mixed = Tasks(name="mixed", train=tasks.train, held_out=tasks.train[:2])
    with pytest.raises(DataError, match="case_id"):
        Loop(optimizer, mixed, ScriptedAgent(), LoopSettings(skill=SKILL, rounds=1))


def start(role: str, store: TraceStore, shelf: SkillShelf) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "astraflow.evolution.traces.cli.main", "loop", "--rounds", "2", "--from", "9",
        "--role", role, "--bank", str(shelf.root), "--output", str(store.root), "--timeout", "120",
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ}
    )


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_two_processes_play_two_rounds_though_each_is_killed_once(
    store: TraceStore, shelf: SkillShelf, tasks: Tasks
) -> None:
    rounds = Rounds(store.rounds)
    trainer = start("trainer", store, shelf)
    assert rounds.wait(9, [RoundStatus.TRAINING_COMPLETE], timeout=60) is WaitResult.COMPLETE
    kill(trainer)  # while it waits for the optimizer
    optimizer = start("optimizer", store, shelf)
    assert optimizer.stdout is not None
    optimizer.stdout.readline()  # its first patch is decided, the round is not
    kill(optimizer)
    again = [start("optimizer", store, shelf), start("trainer", store, shelf)]
    outputs = [process.communicate(timeout=120)[0] for process in again]
    assert [process.returncode for process in again] == [0, 0], outputs
    assert rounds.numbers() == [9, 10]
    scores = []
    for number in rounds.numbers():
        status = rounds.status(number)
        assert status is not None
        assert status.status is RoundStatus.OPTIMIZATION_COMPLETE
        scores.append(json.loads((rounds.path(number) / "result.json").read_bytes())["held_out_score"])
    assert scores[0] < scores[1] == 1.0  # one patch a round, the kill notwithstanding
    ended = [one for one in store.sessions() if store.events(one)[-1].type == "session_end"]
    assert len(ended) == 2 * len(tasks.train)  # nothing is lost and nothing is done twice
    assert NORMALISE in shelf.output(SKILL).read_text("utf-8")
    assert CONVERT in shelf.output(SKILL).read_text("utf-8")
