"""A run directory: of a new run, or of one that goes on; and who is started again how often."""

from pathlib import Path

import pytest

from astraflow.core.config import to_yaml
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import ConfigError
from astraflow.launch.check import load_config
from astraflow.launch.config import RunConfig
from astraflow.launch.recovery import Restarts, at_its_address, open_run_directory, recover_config
from astraflow.launch.specs import ModelPaths, dataflow_spec, raas_specs


class Said(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


def config(run_yaml: Path, mode: str = "disabled", *more: str) -> RunConfig:
    return load_config([run_yaml], [f"trainer_base.recover.mode={mode}", *more])


def begin(path: Path, run: RunConfig, said: Said) -> RunDirectory:
    run_dir = open_run_directory(path, run, said)
    new = not run_dir.config.exists()
    run_dir.config.write_text(to_yaml(run.values()))
    run_dir.release()
    assert new == (not said or "goes on" not in said[-1])
    return run_dir


@pytest.mark.parametrize("mode", ["disabled", "fault"])
def test_an_earlier_run_is_moved_aside_and_never_mixed(tmp_path: Path, run_yaml: Path, mode: str) -> None:
    said = Said()
    for number in range(3):
        run_dir = begin(tmp_path / "run", config(run_yaml, mode), said)
        (run_dir.root / "number").write_text(str(number))
    assert [(tmp_path / name / "number").read_text() for name in ("run", "run.1", "run.2")] == ["2", "0", "1"]
    assert f"is now {tmp_path / 'run.1'}" in said[0]


def test_an_earlier_run_that_cannot_be_moved_aside_is_left_and_let_go(
    tmp_path: Path, run_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, target: Path) -> Path:
        raise PermissionError(13, "Permission denied")

    run_dir = begin(tmp_path / "run", config(run_yaml), Said())
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ConfigError, match="cannot be moved aside: Permission denied"):
        begin(tmp_path / "run", config(run_yaml), Said())
    assert not run_dir.held


def test_a_directory_of_a_living_run_is_refused(tmp_path: Path, run_yaml: Path) -> None:
    run_dir = open_run_directory(tmp_path / "run", config(run_yaml), Said())
    run_dir.config.write_text("")
    with pytest.raises(ConfigError, match="in use by another run"):
        open_run_directory(tmp_path / "run", config(run_yaml), Said())
    assert run_dir.config.exists()
    run_dir.release()


@pytest.mark.parametrize("mode", ["auto", "resume"])
def test_a_run_that_was_stopped_goes_on(tmp_path: Path, run_yaml: Path, mode: str) -> None:
    said = Said()
    begin(tmp_path / "run", config(run_yaml, "auto"), said)
    RunDirectory(tmp_path / "run").announce("raas-0", "http://127.0.0.1:1")  # and its launcher was killed
    resumed = begin(tmp_path / "run", config(run_yaml, mode, "trainer_base.recover.freq_steps=3"), said)
    assert resumed.endpoint("raas-0") is None
    assert said == [f"the run in {tmp_path / 'run'} goes on"]


def test_a_run_that_ended_or_is_another_does_not_go_on(tmp_path: Path, run_yaml: Path) -> None:
    said, path = Said(), tmp_path / "run"
    run_dir = begin(path, config(run_yaml, "auto"), said)
    with pytest.raises(ConfigError, match="another configuration"):
        begin(path, config(run_yaml, "resume", "seed=7"), said)
    run_dir.summary.write_text("{}")
    with pytest.raises(ConfigError, match="ended well"):
        begin(path, config(run_yaml, "resume"), said)
    begin(path, config(run_yaml, "auto"), said)
    assert "is now" in said[-1]
    with pytest.raises(ConfigError, match="holds no run"):
        begin(tmp_path / "nowhere", config(run_yaml, "resume"), said)


def test_what_a_trainer_may_go_back_to_is_kept(tmp_path: Path, run_yaml: Path) -> None:
    seldom = ("trainer_base.recover.freq_steps=50", "trainer_base.total_train_steps=90")
    with pytest.raises(ConfigError, match=r"keep_steps is 64: .* every 50 steps .* may go back 100"):
        begin(tmp_path / "run", config(run_yaml, "auto", *seldom), Said())
    for enough in ("dataflow.ledger.keep_steps=100", "trainer_base.total_train_steps=64"):
        recover_config(config(run_yaml, "auto", *seldom, enough))


def test_restarts_are_bounded_and_said(tmp_path: Path, run_yaml: Path) -> None:
    run = config(run_yaml, "fault", "trainer_base.recover.retries=2")
    run_dir, said = RunDirectory(tmp_path / "run"), Said()
    [spec] = raas_specs(run, run_dir, ModelPaths("m", "t"), "http://h:1")
    restarts = Restarts.of(recover_config(run), said)
    assert restarts.again(spec, 0, "exit code 0", run_dir) is None
    assert restarts.again(spec, 2, "exit code 2", run_dir) is None
    assert restarts.again(spec, -9, "killed by SIGKILL", run_dir) is spec
    assert restarts.again(spec, 1, "exit code 1", run_dir) is spec
    assert restarts.again(spec, -9, "killed by SIGKILL", run_dir) is None
    assert said == [
        "raas-0: killed by SIGKILL; started again (1 of 2)",
        "raas-0: exit code 1; started again (2 of 2)",
    ]
    assert Restarts.of(recover_config(config(run_yaml)), said).again(spec, -9, "killed", run_dir) is None


def test_dataflow_comes_back_at_its_address(tmp_path: Path, run_yaml: Path) -> None:
    run, run_dir = config(run_yaml, "auto"), RunDirectory(tmp_path / "run")
    spec = dataflow_spec(run, run_dir, ModelPaths("m", "t"))
    assert at_its_address(spec, run_dir) is spec
    run_dir.announce("dataflow", "http://127.0.0.1:4711")
    assert at_its_address(spec, run_dir).settings.dataflow.port == 4711  # type: ignore[attr-defined]
