"""A sample that has no reward says why: in the log, the metrics, the audit and the report."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.cli import audit
from astraflow.core.data import Failed, Invalid
from astraflow.core.observability.failures import read_failures
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol import messages as m
from astraflow.dashboard.report import write_report
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, ScriptedRaaS, example_rows
from astraflow.dataflow.store import LedgerStore
from astraflow.dataflow.trajectory_log import TrajectoryLog

FRAMES = "DataError: the template refuses <part 3>\n  File template.py, line 9, in render"


def rehearse(
    settings: DataflowSettings, run: RunDirectory, fails: Callable[[int], Any], durable: bool = False
) -> list[dict[str, float]]:
    """Train some steps; the row of prompt 1 has what `fails` says. Returns the statistics of each batch."""
    rows, n = example_rows(4), settings.gconfigs["model0"].n_samples

    def script(task: m.Task, version: int) -> list[Any]:
        if task.data["task_id"] == rows[1]["task_id"]:
            return [fails(i) for i in range(n)]
        return [float(i % 2) for i in range(n)]

    found = []

    async def body() -> None:
        store = LedgerStore(run.ledger, fsync=False) if durable else None
        rehearsal = Rehearsal(settings, rows=rows, trajectories=TrajectoryLog(run), store=store)
        async with rehearsal.running():
            await rehearsal.join(ScriptedRaaS("r", Rehearsal.TOKEN, script))
            trainer = rehearsal.trainer(n)
            await trainer.begin()
            for _ in range(3):
                found.append(dict((await trainer.train()).buffer_stats))

    asyncio.run(asyncio.wait_for(body(), 60))
    return found


@pytest.mark.parametrize("made", [lambda _: Failed("crash", FRAMES), None])
def test_a_failure_is_told_everywhere(
    make_settings: Callable[..., DataflowSettings],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    made: Callable[[int], Any] | None,
) -> None:
    caplog.set_level(logging.WARNING)
    run = RunDirectory(tmp_path / "run")
    run.config.write_text("{}")
    stats = rehearse(make_settings(), run, made or (lambda _: Invalid("crash", FRAMES)), durable=True)
    assert sum(each.get("rollout/lost/crash", 0) for each in stats) > 0
    audit.show(run.root, None)
    told = {
        "log": caplog.text,
        "audit": capsys.readouterr().out,
        "report": write_report([run.root]).read_text("utf-8").replace("&lt;", "<").replace("&gt;", ">"),
    }
    task = example_rows(4)[1]["task_id"]
    for where, text in told.items():
        assert "the template refuses <part 3>" in text, where
        assert "line 9, in render" in text, where
        assert f"row 1 (task {task})" in text, where
    assert caplog.text.count("the template refuses") == 1, "one line for each kind, not for each sample"


def test_endless_kinds_are_bounded(make_settings: Callable[..., DataflowSettings], tmp_path: Path) -> None:
    """Texts with a number in them are kinds of their own, up to a bound."""
    run, number = RunDirectory(tmp_path / "run"), iter(range(10**9))
    rehearse(make_settings(n_samples=120), run, lambda _: Failed("crash", f"number {next(number)}"))
    text = run.failures.read_text("utf-8")
    assert next(number) > 100
    assert text.count('"detail"') <= 101
    assert "further kinds" in text


def test_the_next_life_of_a_run_counts_on(make_settings: Callable[..., DataflowSettings], tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    rehearse(make_settings(), run, lambda _: Failed("crash", "a"))
    rehearse(make_settings(), run, lambda _: Failed("crash", "b"))
    assert {failure.detail for failure in read_failures(run.failures)} == {"a", "b"}
    run.failures.write_text("[{")  # cut off by a full disk
    assert read_failures(run.failures) == []


def test_what_was_cut_is_no_failure(make_settings: Callable[..., DataflowSettings], tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    rehearse(make_settings(), run, lambda _: Failed("cut"))
    assert not run.failures.exists()
