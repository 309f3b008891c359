import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from astraflow.core.observability import stats_logger
from astraflow.core.observability.config import (
    ConsoleConfig,
    JsonlConfig,
    PrometheusConfig,
    StatsLoggerConfig,
    SwanLabConfig,
    TrackioConfig,
    WandbConfig,
)
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.sinks.base import LoggedRun
from astraflow.core.observability.stats_logger import StatsLogger, missing_packages
from astraflow.errors import ConfigError, DataError


def logged_run(folder: Path) -> LoggedRun:
    RunDirectory(folder)
    return LoggedRun(experiment_name="e", trial_name="t", model_id="model0", directory=folder)


def test_a_step_is_one_line_of_metrics(tmp_path: Path) -> None:
    logger = StatsLogger(logged_run(tmp_path), StatsLoggerConfig(), clock=lambda: 12.5)
    logger.commit(0, {"eval/x": 1})
    logger.commit(1, {"loss": 0.25, "bad": float("nan")})
    logger.close()
    lines = [json.loads(line) for line in RunDirectory(tmp_path).metrics.read_text().splitlines()]
    assert lines == [
        {"step": 0, "time": 12.5, "eval/x": 1.0},
        {"step": 1, "time": 12.5, "loss": 0.25, "bad": None},
    ]


def test_a_sink_that_is_off_writes_nothing(tmp_path: Path) -> None:
    config = StatsLoggerConfig(jsonl=JsonlConfig(enabled=False), console=ConsoleConfig(enabled=False))
    StatsLogger(logged_run(tmp_path), config).commit(1, {"loss": 1.0})
    assert not RunDirectory(tmp_path).metrics.exists()


def test_several_sinks_take_the_same_step(tmp_path: Path) -> None:
    config = StatsLoggerConfig(prometheus=PrometheusConfig(enabled=True))
    logger = StatsLogger(logged_run(tmp_path), config)
    logger.commit(2, {"loss": 1.0})
    logger.close()
    assert RunDirectory(tmp_path).metrics.exists()
    assert "astraflow_loss{" in (tmp_path / "metrics-model0.prom").read_text()


def test_a_sink_that_cannot_start_is_named(tmp_path: Path) -> None:
    run = logged_run(tmp_path)
    RunDirectory(tmp_path).metrics.mkdir()
    with pytest.raises(ConfigError, match=r"stats_logger\.jsonl cannot start"):
        StatsLogger(run, StatsLoggerConfig())


def test_a_sink_that_fails_later_is_named(tmp_path: Path) -> None:
    logger = StatsLogger(logged_run(tmp_path), StatsLoggerConfig())
    logger.close()
    with pytest.raises(DataError, match=r"stats_logger\.jsonl failed at step 3"):
        logger.commit(3, {"loss": 1.0})


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_logger, "find_module", lambda name: None)
    config = StatsLoggerConfig(wandb=WandbConfig(mode="offline"), swanlab=SwanLabConfig(mode="local"))
    assert missing_packages(config) == {
        "wandb": "needs the package wandb: pip install 'astraflow[wandb]'",
        "swanlab": "needs the package swanboard: pip install 'astraflow[swanlab]'",
    }
    with pytest.raises(ConfigError, match=r"stats_logger\.wandb: needs the package wandb"):
        StatsLogger(logged_run(tmp_path), config)
    assert missing_packages(StatsLoggerConfig()) == {}


def test_what_is_installed_is_not_missing() -> None:
    config = StatsLoggerConfig(trackio=TrackioConfig(mode="local"))
    assert (missing_packages(config) == {}) == (find_spec("trackio") is not None)
