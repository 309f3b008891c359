from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import DataError, PeerError
from astraflow.launch import base_model
from astraflow.launch.base_model import cache_path, ensure_base_model, fingerprint
from astraflow.launch.config import RunConfig, load_config_tree
from astraflow.launch.specs import ProcessSpec, sft_spec

MAKES = """
import json, pathlib, sys
settings = json.load(open(sys.argv[2]))
print("step 1/1", flush=True)
out = pathlib.Path(settings["output_dir"])
out.mkdir()
{last}
"""


@pytest.fixture
def config(run_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(base_model, "sft_spec", small)
    return load_config_tree([run_yaml])[0]


def small(config: RunConfig, run_dir: RunDirectory, output_dir: Path) -> ProcessSpec:
    return replace(sft_spec(config, run_dir, output_dir), module="makes_model")


def test_it_is_made_once_and_kept(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "makes_model.py").write_text(MAKES.format(last="(out / 'config.json').write_text('{}')"))
    said: list[str] = []
    path = ensure_base_model(config, RunDirectory(tmp_path / "run"), said.append)
    assert path is not None
    assert path == cache_path(config.base_model) if config.base_model else None
    assert (path / "config.json").is_file()
    assert "step 1/1" in said
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    (tmp_path / "makes_model.py").write_text("raise SystemExit('made again')")
    again: list[str] = []
    assert ensure_base_model(config, RunDirectory(tmp_path / "run"), again.append) == path
    assert again == [f"base model from cache: {path}"]


def test_a_failure_leaves_nothing_in_the_cache(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "makes_model.py").write_text(MAKES.format(last="sys.exit('out of luck')"))
    with pytest.raises(PeerError, match=r"(?s)base_model .*exit code 1.*out of luck"):
        ensure_base_model(config, RunDirectory(tmp_path / "run"), lambda line: None)
    assert list((tmp_path / "cache" / "base").iterdir()) == []


def test_an_output_that_is_no_model_is_refused(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "makes_model.py").write_text(MAKES.format(last=""))
    with pytest.raises(DataError, match="no Hugging Face directory"):
        ensure_base_model(config, RunDirectory(tmp_path / "run"), lambda line: None)


def test_a_run_without_the_section_makes_none(config: RunConfig, tmp_path: Path) -> None:
    assert ensure_base_model(config.starting_from(tmp_path), RunDirectory(tmp_path / "run"), print) is None


def test_the_fingerprint_follows_configuration_and_code(config: RunConfig, tmp_path: Path) -> None:
    assert config.base_model is not None
    other = config.base_model.model_copy(update={"seed": 2})
    assert fingerprint(config.base_model) == fingerprint(config.base_model)
    assert fingerprint(config.base_model) != fingerprint(other)
    source = tmp_path / "core" / "model" / "decoder.py"
    source.parent.mkdir(parents=True)
    source.write_text("x = 1")
    before = fingerprint(other, tmp_path)
    source.write_text("x = 2")
    assert fingerprint(other, tmp_path) != before
