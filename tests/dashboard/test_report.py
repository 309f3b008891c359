"""The page in a real browser, without a network, from a run whose every text is hostile."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow import dashboard
from astraflow.dashboard.report import write_report
from astraflow.errors import ConfigError, DataError

LIMIT = 5_000_000
BASE = Path(dashboard.__file__).parent / "templates" / "base.html.jinja"
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
SECTIONS = {
    "facts", "reward", "accuracy", "staleness", "throughput", "lengths", "drops", "time", "health", "episodes",
    "config",
}  # fmt: skip
CHARTS = {
    "reward", "accuracy", "staleness", "rollout-tokens", "train-tokens", "lengths", "truncated", "drops", "gantt",
    "entropy", "grad-norm", "ratio", "mismatch",
}  # fmt: skip


def sections(dom: str) -> set[str]:
    return set(re.findall(r'<section id="([\w-]+)"', dom))


def test_the_page_of_a_run(make_run: Callable[..., Path], browse: Callable[[Path], Any], tmp_path: Path) -> None:
    path = write_report([make_run(tmp_path / "run")])
    assert path == tmp_path / "run" / "report.html"
    assert path.stat().st_size < LIMIT
    page = browse(path)
    assert page.console == []
    assert page.ready
    assert sections(page.dom) == SECTIONS
    assert page.drawn == CHARTS
    assert page.dom.count('class="card episode"') == 36
    assert "nothing was recorded" not in page.dom


def test_no_text_of_a_run_becomes_markup(
    make_run: Callable[..., Path], browse: Callable[[Path], Any], tmp_path: Path
) -> None:
    page = browse(write_report([make_run(tmp_path / "run", finished=False)]))
    assert page.console == []
    assert not re.search(r"<img|<!--\$", page.dom)
    assert page.dom.count("</html>") == 1
    assert "&lt;/script&gt;&lt;img" in page.dom


@pytest.mark.parametrize(("by", "shades"), [("mask", 2), ("version", 3), ("gap", 4)])
def test_episodes_are_coloured_by(
    make_run: Callable[..., Path], browse: Callable[[Path], Any], tmp_path: Path, by: str, shades: int
) -> None:
    path = write_report([make_run(tmp_path / "run", trial_name="t")])
    press = f"<script>document.querySelector('#colouring [data-by={by}]').click()</script></body>"
    path.write_text(path.read_text("utf-8").replace("</body>", press), "utf-8")
    page = browse(path)
    assert page.console == []
    assert re.search(rf'data-by="{by}" class="on"', page.dom)
    backgrounds = re.findall(r'<span title="[^"]*" style="background: ([^;]+);">', page.dom)
    assert len(backgrounds) == 36 * 4
    assert len(set(backgrounds)) == shades


def test_a_run_that_died_shows_what_there_is(
    make_run: Callable[..., Path], browse: Callable[[Path], Any], tmp_path: Path
) -> None:
    root = make_run(tmp_path / "run", finished=False)
    for name in ("metrics.jsonl", "spans.jsonl"):
        (root / name).unlink()
    page = browse(write_report([root]))
    assert page.console == []
    assert page.ready
    assert sections(page.dom) == SECTIONS | {"logs"}
    assert "did not finish" in page.dom
    assert page.dom.count("nothing was recorded") == len(CHARTS)


def test_the_page_of_several_runs(make_run: Callable[..., Path], browse: Callable[[Path], Any], tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=2)]
    path = write_report(runs, tmp_path / "both.html")
    assert path.stat().st_size < LIMIT
    page = browse(path)
    assert page.console == []
    assert page.ready
    assert page.drawn == CHARTS - {"drops", "gantt"}
    assert "<code>experiment.seed</code>" in page.dom
    assert not re.search(r"<img", page.dom)


@pytest.mark.parametrize(
    "script",
    [
        "undefined_function()",
        "console.error('x')",
        "fetch('http://example.com/')",
        "document.write('<img src=http://example.com/x.png>')",
    ],
)
def test_the_browser_would_tell(browse: Callable[[Path], Any], tmp_path: Path, script: str) -> None:
    path = tmp_path / "bad.html"
    head = '<!doctype html><meta charset="utf-8">' + POLICY.search(BASE.read_text("utf-8"))[0]
    path.write_text(f"{head}<title>x</title><body><script>{script}</script>", "utf-8")
    assert browse(path).console != []


def test_several_runs_go_to_the_working_directory(
    make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_report([make_run(tmp_path / "a"), make_run(tmp_path / "b")])
    assert (tmp_path / "comparison.html").is_file()


@pytest.mark.parametrize("name", ["metrics.jsonl", "spans.jsonl"])
@pytest.mark.parametrize("line", ["[1, 2]", "{}", '{"step": "x", "start": "x"}', "{"])
def test_a_line_that_is_none_is_named(tmp_path: Path, make_run: Callable[..., Path], name: str, line: str) -> None:
    run = make_run(tmp_path / "run")
    with (run / name).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        write_report([run])


def test_what_is_no_run_is_refused(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="is not a run directory"):
        write_report([tmp_path])
    with pytest.raises(ConfigError, match="at least one"):
        write_report([])
    with pytest.raises(DataError, match="cannot be written"):
        write_report([make_run(tmp_path / "run")], tmp_path / "missing" / "x.html")
