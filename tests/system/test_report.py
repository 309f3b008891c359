"""The report and the metrics glossary against a real run of the quickstart, cut short."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.core.data.generation import StopReason
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dashboard.episodes import sample_episodes
from astraflow.dataflow.ledger_events import DropReason

ROOT = Path(__file__).parents[2]
LIMIT = 5_000_000
RARE = {
    "m2po/eps_low", "m2po/eps_high", "m2po/moment", "ratio/current_version_max_dev", "rollout/lost/<reason>",
    "stop/abort", "stop/length", "stop/tool_calls",
    *(f"curriculum/{name}" for name in ("issued/<dataset>", "visited", "left_out", "solved", "easy", "medium", "hard")),
}  # fmt: skip
"""Metrics that a short run of the quickstart may not have."""

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def run(launch: Callable[..., subprocess.Popen[str]], tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("short")
    process = launch(folder / "run", "trainer_base.total_train_steps=4", "dataflow.eval_datasets.held_out.size=20")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert f"report: {folder}/run/report.html" in said
    return RunDirectory(folder / "run", create=False)


def glossary() -> dict[str, re.Pattern[str]]:
    """The metrics of docs/metrics.md, whose <names in brackets> stand for anything without a slash."""
    text = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    names = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
    return {name: re.compile("[^/]+".join(re.escape(part) for part in re.split(r"<\w+>", name))) for name in names}


def metrics_of(run: RunDirectory) -> set[str]:
    return {name for line in run.metrics.read_text().splitlines() for name in json.loads(line)}


def test_every_metric_of_a_run_is_in_the_glossary(run: RunDirectory) -> None:
    known = glossary().values()
    assert sorted(name for name in metrics_of(run) if not any(pattern.fullmatch(name) for pattern in known)) == []


def test_nothing_in_the_glossary_is_of_the_past(run: RunDirectory) -> None:
    metrics = metrics_of(run)
    unseen = {name for name, pattern in glossary().items() if not any(map(pattern.fullmatch, metrics))}
    assert unseen <= RARE


def test_every_reason_is_in_the_glossary() -> None:
    names = {f"dropped/{reason.value}" for reason in DropReason} | {f"stop/{reason.value}" for reason in StopReason}
    assert names <= set(glossary())


def test_the_report_is_drawn_and_small(run: RunDirectory) -> None:
    assert run.report.stat().st_size < LIMIT
    text = run.report.read_text("utf-8")
    for name in ("gantt", "reward", "accuracy", "staleness", "rollout-tokens", "lengths"):
        assert f'data-chart="{name}"' in text


def test_the_report_opens_in_a_browser_without_a_network(run: RunDirectory, browse: Callable[[Path], Any]) -> None:
    page = browse(run.report)
    assert page.ready
    assert page.console == []
    assert page.drawn == set(re.findall(r'data-chart="([\w-]+)"', run.report.read_text("utf-8")))


def test_all_three_programs_say_what_they_do_when(run: RunDirectory) -> None:
    spans = [json.loads(line) for line in run.spans.read_text().splitlines()]
    names = {(span["process"], span["name"]) for span in spans}
    assert {
        ("train_worker-model0", "wait_batch"),
        ("train_worker-model0", "train"),
        ("train_worker-model0", "publish"),
        ("train_worker-model0", "eval"),
        ("train_worker-model0", "save"),
        ("dataflow", "collect"),
        ("dataflow", "evaluate"),
        ("raas-0", "generate"),
        ("raas-0", "evaluate"),
        ("raas-0", "pull"),
        ("raas-0", "swap"),
    } <= names
    assert all(span["seconds"] >= 0 for span in spans)


def test_engine_and_trainer_agree_where_no_weights_moved(run: RunDirectory) -> None:
    episodes = [episode for episode in sample_episodes(run, 50) if episode.outcome == "trained"]
    assert episodes
    current = []
    for episode in episodes:
        sampled = [i for i, mask in enumerate(episode.mask) if mask]
        assert all(episode.gaps[i] is not None for i in sampled)
        assert "".join(episode.texts).startswith("<|user|>")
        # after a swap in the middle, the cache of what came before is still the older version's
        if all(episode.versions[i] == episode.step - 1 for i in sampled):
            current += [abs(episode.gaps[i] or 0.0) for i in sampled]
    assert current, "the first batch is of the only version"
    assert max(current) < 1e-3


def test_a_run_that_is_stopped_leaves_a_report(
    launch: Callable[..., subprocess.Popen[str]], small_run: tuple[str, ...], tmp_path: Path
) -> None:
    process = launch(tmp_path / "run", "trainer_base.total_train_steps=5000", *small_run)
    assert process.stdout is not None
    for line in process.stdout:
        if "step 2/" in line:
            process.send_signal(signal.SIGINT)
            break
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    text = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "did not finish" in text
    assert 'data-chart="gantt"' in text
