from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import ConfigError, DataError
from astraflow.launch.cache import LogLines, cache_root, make_model
from astraflow.launch.model_source import ConversionSettings
from astraflow.launch.specs import ProcessSpec

WRITES = """
import json, pathlib, sys
out = pathlib.Path(json.load(open(sys.argv[2]))["output_dir"])
out.mkdir()
(out / "config.json").write_text("{}")
"""


def test_the_users_choice_of_cache_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("ASTRAFLOW_CACHE")
    assert cache_root() == Path("~/.cache/astraflow").expanduser()


def test_two_runs_that_make_the_same_model_end_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "writes.py").write_text(WRITES)
    run_dir, path = RunDirectory(tmp_path / "run"), tmp_path / "cache" / "models" / "m"

    def spec(draft: Path) -> ProcessSpec:
        path.mkdir(exist_ok=True)  # the other run was first
        (path / "theirs").touch()
        settings = ConversionSettings(source="", output_dir=str(draft))
        return ProcessSpec("model", "writes", settings, run_dir.settings("model"), run_dir.log("model"))

    path.parent.mkdir(parents=True)
    make_model(path, spec, run_dir, lambda line: None)
    assert (path / "theirs").exists()
    assert [entry.name for entry in path.parent.iterdir()] == ["m"]


def test_a_process_that_leaves_no_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "writes.py").write_text("")
    run_dir = RunDirectory(tmp_path / "run")
    settings = ConversionSettings(source="", output_dir="")
    spec = ProcessSpec("model", "writes", settings, run_dir.settings("model"), run_dir.log("model"))
    with pytest.raises(DataError, match="the model process ended well but left no Hugging Face directory"):
        make_model(tmp_path / "cache" / "m", lambda draft: spec, run_dir, lambda line: None)


def test_log_lines_are_handed_on_once_and_whole(tmp_path: Path) -> None:
    log, said = tmp_path / "x.log", []
    lines = LogLines(log, said.append)
    log.write_text("one\ntw")
    lines()
    log.write_text("one\ntwo\n")
    lines()
    assert said == ["one", "two"]


def test_a_cache_that_cannot_be_written_is_one_line_that_says_what_helps(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    run_dir = RunDirectory(tmp_path / "run")
    settings = ConversionSettings(source="", output_dir="")
    spec = ProcessSpec("model", "writes", settings, run_dir.settings("model"), run_dir.log("model"))
    with pytest.raises(ConfigError, match=r"cache: .* ASTRAFLOW_CACHE names another one"):
        make_model(tmp_path / "cache" / "m", lambda draft: spec, run_dir, lambda line: None)
