import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from astraflow.core.observability.run_directory import Announcement, RunDirectory
from astraflow.errors import ConfigError, DataError


def test_the_layout_is_created_once_and_again(tmp_path: Path) -> None:
    for _ in range(2):
        run = RunDirectory(tmp_path / "a" / "run")
    assert {entry.name for entry in run.root.iterdir()} == {
        "settings",
        "endpoints",
        "logs",
        "trajectories",
        "checkpoints",
    }
    assert run.checkpoint(7).name == "step_000007"
    assert run.settings("raas-0").name == "raas-0.json"


def test_a_reader_creates_nothing(tmp_path: Path) -> None:
    assert not RunDirectory(tmp_path / "run", create=False).root.exists()


def test_an_impossible_path_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="run directory"):
        RunDirectory(tmp_path / "file")


def test_the_token_is_private_and_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRAFLOW_TOKEN", raising=False)
    run = RunDirectory(tmp_path)
    token = run.token()
    assert len(token) >= 32
    assert RunDirectory(tmp_path).token() == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_processes_that_ask_at_once_get_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRAFLOW_TOKEN", raising=False)
    RunDirectory(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: RunDirectory(tmp_path).token(), range(32)))
    assert len(tokens) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".token")] == []


def test_the_environment_gives_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "given")
    assert RunDirectory(tmp_path).token() == "given"
    assert not (tmp_path / "token").exists()


def test_announcements_are_read_back_and_tell_their_process(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.endpoint("raas-0") is None
    run.announce("raas-0", "http://127.0.0.1:1")
    announced = run.endpoint("raas-0", os.getpid())
    assert announced is not None
    assert announced.url == "http://127.0.0.1:1"
    assert run.endpoint("raas-0", os.getpid() + 1) is None  # left behind by another process
    assert announced.here
    assert announced.alive
    assert not msgspec.structs.replace(announced, started=1).alive  # its pid was another's before
    assert not msgspec.structs.replace(announced, host="another machine").alive
    assert not msgspec.structs.replace(announced, boot="before a reboot").alive  # start times count from there
    assert not Announcement(name="far", url="http://far:1", pid=1, host="another machine").here
    for _ in range(2):
        run.withdraw("raas-0")
    assert run.endpoint("raas-0") is None


def test_a_broken_announcement_is_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    (tmp_path / "endpoints" / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x\.json"):
        run.endpoint("x")


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "..", "n" * 201])
def test_names_stay_inside_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a process"):
        RunDirectory(tmp_path).log(name)


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(ConfigError, match="its file lock: Is a directory"):
        RunDirectory(tmp_path).hold()


def test_who_reads_a_run_is_told_where_there_is_none(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / ("n" * 300), Path(__file__)):
        with pytest.raises(ConfigError, match="is not a run directory"):
            RunDirectory.existing(place)
    assert not RunDirectory(__file__, create=False).held
    (tmp_path / "metrics.jsonl").touch()
    assert RunDirectory.existing(tmp_path).root == tmp_path


def test_two_runs_cannot_hold_one_directory(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.hold()
    other = (
        f"from astraflow.core.observability.run_directory import RunDirectory\nRunDirectory({str(tmp_path)!r}).hold()"
    )
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert "in use by another run" in done.stderr
    assert run.held
    assert RunDirectory(tmp_path).held
    run.release()
    assert not run.held
    assert subprocess.run([sys.executable, "-c", other], check=False).returncode == 0
