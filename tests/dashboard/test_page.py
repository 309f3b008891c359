import json
import re
from collections.abc import Callable
from pathlib import Path

from astraflow.dashboard.page import comparison_page, run_page
from astraflow.dashboard.recording import read_recording


def test_the_page_asks_for_nothing(make_run: Callable[..., Path], tmp_path: Path) -> None:
    page = run_page(read_recording(make_run(tmp_path / "run", trial_name="t")))
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=\"(?!data:)", page)


def test_facts_come_from_the_summary(make_run: Callable[..., Path], tmp_path: Path) -> None:
    page = run_page(read_recording(make_run(tmp_path / "run")))
    for text in ("50.0% → 90.0%", "— → 95.0%", "95% interval 85.0% to 93.0%", "1:15 min", "12,346", "bound η = 2"):
        assert text in page


def test_json_in_the_page_is_whole_and_ends_no_script(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = read_recording(make_run(tmp_path / "run"))
    blocks = re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', run_page(run), re.DOTALL)
    data = {name: json.loads(text) for name, text in blocks}
    assert [episode["task"] for episode in data["data-episodes"]] == [run.episodes[0].task] * len(run.episodes)
    assert len(data) == 14


def test_many_runs_are_told_apart(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = read_recording(make_run(tmp_path / "run"))
    page = comparison_page([run] * 27)
    assert '<b class="letter">Z</b>' in page
    assert '<b class="letter">R27</b>' in page
    assert "In nothing but their names and places." in page
