"""The end of a run: its report."""

from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dashboard import report
from astraflow.launch.run import draw_report


def test_the_report_is_drawn_and_said(tmp_path: Path) -> None:
    run_dir = RunDirectory(tmp_path)
    run_dir.config.write_text("experiment: {experiment_name: e, trial_name: t}\n")
    said: list[str] = []
    draw_report(run_dir, said.append)
    assert said == [f"report: {tmp_path}/report.html"]
    assert "did not finish" in run_dir.report.read_text("utf-8")


def test_a_report_that_cannot_be_drawn_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run_dirs: list[Path]) -> Path:
        raise ValueError("an odd run")

    said: list[str] = []
    draw_report(RunDirectory(tmp_path), said.append)
    monkeypatch.setattr(report, "write_report", broken)
    draw_report(RunDirectory(tmp_path), said.append)
    assert said == [
        f"no report: {tmp_path} is not a run directory: it holds neither config.yaml nor metrics.jsonl",
        "no report: it cannot be drawn: ValueError: an odd run",
    ]
