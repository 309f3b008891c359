"""A RaaS that joins a run: what it may decide for itself, and when it leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest

import astraflow.launch.join as joining
from astraflow.core.config import Section, to_yaml, write_settings
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import ConfigError, PeerError
from astraflow.launch.check import load_config
from astraflow.launch.join import join, joining_spec
from astraflow.launch.specs import ModelPaths, ProcessSpec, raas_specs
from astraflow.raas.config import RaaSSettings

URL = "http://127.0.0.1:8000"


@pytest.fixture
def run_dir(run_yaml: Path, tmp_path: Path) -> RunDirectory:
    """Of a run that goes on, with two RaaS of its own."""
    config = load_config([run_yaml], ["raas.instances=2"])
    run_dir = RunDirectory(tmp_path / "run")
    run_dir.config.write_text(to_yaml(config.values()), "utf-8")
    [first, _] = raas_specs(config, run_dir, ModelPaths("/models/base", "/models/tokenizer"), URL)
    write_settings(first.settings, first.settings_path)
    run_dir.hold()
    run_dir.announce("dataflow", URL)
    return run_dir


def test_it_has_the_runs_settings_and_its_own(run_dir: RunDirectory) -> None:
    own = ["rollout.max_concurrent_rollouts=3", "raas.models.model0.embedded.max_running_requests=5", "raas.port=19090"]
    spec, url = joining_spec(run_dir, "far", own)
    assert (spec.name, spec.module, url) == ("far", "astraflow.raas.app", URL)
    settings = spec.settings
    assert isinstance(settings, RaaSSettings)
    assert (settings.uid, settings.dataflow_urls, settings.raas.port) == ("far", [URL], 19090)
    assert settings.rollout.max_concurrent_rollouts == 3
    assert settings.raas.models["model0"].embedded.max_running_requests == 5
    assert settings.raas.models["model0"].gconfig.n_samples == 4, "as the run samples"
    assert (settings.model_paths, settings.tokenizer_path) == ({"model0": "/models/base"}, "/models/tokenizer")


@pytest.mark.parametrize(
    "key",
    [
        "dataflow.buffer.max_staleness",
        "raas.instances",
        "raas.scaling",
        "raas.models.model0.gconfig.temperature",
        "seed",
    ],
)
def test_what_is_the_runs_to_decide_is_refused(run_dir: RunDirectory, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: .* its own are rollout"):
        joining_spec(run_dir, "far", [f"{key}=1"])


@pytest.mark.parametrize(
    ("name", "words"), [("raas-7", "the launcher"), ("dataflow", "is or was in the run"), ("a/b", "cannot name")]
)
def test_a_name_that_is_taken_is_refused(run_dir: RunDirectory, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        joining_spec(run_dir, name, [])


def test_there_is_nothing_to_join_where_no_run_goes_on(run_dir: RunDirectory, tmp_path: Path) -> None:
    run_dir.release()
    for path in (run_dir.root, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="no run goes on there"):
            join(path, "far", [], print)
    assert not (tmp_path / "nowhere").exists()


MODULE = """
import json, signal, sys, time
from astraflow.core.observability.run_directory import RunDirectory

settings = json.load(open(sys.argv[2]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
RunDirectory(settings["run_dir"]).announce("far", "http://127.0.0.1:9")
time.sleep(settings["seconds"])
print("the reason of it all", flush=True)
sys.exit(settings["code"])
"""


class Settings(Section):
    run_dir: str
    seconds: float
    code: int


@pytest.fixture
def joins(run_dir: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Join with a process that lasts so many seconds and ends with such a code; what is said."""
    (tmp_path / "small_raas.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(seconds: float, code: int, hear: Callable[[str], None] = lambda text: None) -> list[str]:
        settings = Settings(run_dir=str(run_dir.root), seconds=seconds, code=code)
        spec = ProcessSpec("far", "small_raas", settings, run_dir.settings("far"), run_dir.log("far"))
        monkeypatch.setattr(joining, "joining_spec", lambda *_: (spec, URL))
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            hear(text)

        join(run_dir.root, "far", [], say)
        return said

    return run


def test_it_leaves_when_it_was_drained(joins: Callable[..., list[str]], run_dir: RunDirectory) -> None:
    assert joins(0.3, 0) == [
        f"far at http://127.0.0.1:9 joins the run of {URL}; log: {run_dir.log('far')}",
        "far: it has left",
    ]
    assert run_dir.endpoint("far") is None


@pytest.mark.parametrize("how", ["stopped in order", "killed"])
def test_it_ends_with_the_run(joins: Callable[..., list[str]], run_dir: RunDirectory, how: str) -> None:
    end = run_dir.release if how == "killed" else lambda: run_dir.withdraw("dataflow")
    assert joins(60, 3, lambda text: end())[-1] == "far: the run has ended"
    assert run_dir.endpoint("far") is None


def test_how_it_failed_is_said(joins: Callable[..., list[str]], run_dir: RunDirectory) -> None:
    with pytest.raises(PeerError, match=r"(?s)far \(pid \d+\) ended: exit code 3.*the reason of it all"):
        joins(0.3, 3)
    assert run_dir.endpoint("far") is None
