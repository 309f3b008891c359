"""A round scores the versions of all policies together: it is known by all of them, and not by the highest number."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.eval_log import EvalLog
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, ScriptedTrainer, example_rows

MakeSettings = Callable[..., DataflowSettings]

EVALS: dict[str, Any] = {
    "eval_workflows": {"w": {"workflow_cls": "rlvr"}},
    "eval_datasets": {"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "w"}},
}


def play(
    settings: DataflowSettings,
    directory: Path,
    scenario: Callable[[ScriptedRaaS, ScriptedTrainer, ScriptedTrainer], Awaitable[None]],
) -> None:
    async def body() -> None:
        options: dict[str, Any] = {"eval_rows": {"held_out": example_rows(2)}, "eval_log": EvalLog(directory, 2)}
        async with asyncio.timeout(30.0), Rehearsal(settings, **options).running() as rehearsal:
            peer = ScriptedRaaS("r", Rehearsal.TOKEN, lambda task, version: [1.0], models=("a", "b"))
            await rehearsal.join(peer)
            a, b = rehearsal.trainer(4, "a"), rehearsal.trainer(4, "b")
            await a.begin()
            await b.begin()
            # numbers jump, as after a recovery: b's is the higher one from here on
            b.version = 7
            await b.announce()
            await scenario(peer, a, b)

    asyncio.run(body())


def scored(peer: ScriptedRaaS) -> int:
    return sum(lane == "eval" for lane, _, _ in peer.submitted)


@pytest.fixture
def settings(make_settings: MakeSettings) -> DataflowSettings:
    return make_settings(n_samples=1, models=("a", "b"), barrier="independent", **EVALS)


def test_another_version_of_either_policy_is_another_round(settings: DataflowSettings, tmp_path: Path) -> None:
    async def scenario(peer: ScriptedRaaS, a: ScriptedTrainer, b: ScriptedTrainer) -> None:
        await b.announce(run_eval=True)
        for trainer, number in ((a, 1), (a, 2), (b, 8), (a, 3)):
            before = scored(peer)
            trainer.version = number
            reply = await trainer.announce(run_eval=True)
            assert scored(peer) - before == 4, f"version {number} is not scored"
            assert reply.eval_results is not None
            assert reply.eval_results.version == number, "each trainer is told of its own policy's version"

    play(settings, tmp_path, scenario)


def test_the_very_same_versions_are_scored_once(settings: DataflowSettings, tmp_path: Path) -> None:
    async def scenario(peer: ScriptedRaaS, a: ScriptedTrainer, b: ScriptedTrainer) -> None:
        await b.announce(run_eval=True)
        before = scored(peer)
        replies = [await trainer.announce(run_eval=True) for trainer in (b, a, b)]
        assert scored(peer) == before
        assert all(reply.eval_results is not None for reply in replies)

    play(settings, tmp_path, scenario)


def test_no_round_writes_over_another_ones_samples(settings: DataflowSettings, tmp_path: Path) -> None:
    async def scenario(peer: ScriptedRaaS, a: ScriptedTrainer, b: ScriptedTrainer) -> None:
        await b.announce(run_eval=True)
        a.version = 1
        await a.announce(run_eval=True)
        b.version = 8
        await b.announce(run_eval=True)
        a.version = 2
        await a.announce(run_eval=True)
        files = sorted(tmp_path.glob("*.jsonl"))
        assert len(files) == 4
        assert {len(file.read_text().splitlines()) for file in files} == {4}

    play(settings, tmp_path, scenario)
