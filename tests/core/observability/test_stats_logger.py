import json
from pathlib import Path

import pytest

from astraflow.core.observability.config import ConsoleConfig, JsonlConfig, StatsLoggerConfig
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.stats_logger import StatsLogger
from astraflow.errors import ConfigError, DataError


def test_a_step_is_one_line_of_metrics(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    logger = StatsLogger(run, StatsLoggerConfig(), clock=lambda: 12.5)
    logger.commit(0, {"eval/x": 1})
    logger.commit(1, {"loss": 0.25, "bad": float("nan")})
    logger.close()
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert lines == [
        {"step": 0, "time": 12.5, "eval/x": 1.0},
        {"step": 1, "time": 12.5, "loss": 0.25, "bad": None},
    ]


def test_a_sink_that_is_off_writes_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    config = StatsLoggerConfig(jsonl=JsonlConfig(enabled=False), console=ConsoleConfig(enabled=False))
    StatsLogger(run, config).commit(1, {"loss": 1.0})
    assert not run.metrics.exists()


def test_a_sink_that_cannot_start_is_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.metrics.mkdir()
    with pytest.raises(ConfigError, match=r"stats_logger\.jsonl cannot start"):
        StatsLogger(run, StatsLoggerConfig())


def test_a_sink_that_fails_later_is_named(tmp_path: Path) -> None:
    logger = StatsLogger(RunDirectory(tmp_path), StatsLoggerConfig())
    logger.close()
    with pytest.raises(DataError, match=r"stats_logger\.jsonl failed at step 3"):
        logger.commit(3, {"loss": 1.0})
