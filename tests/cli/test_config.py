from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.errors import ConfigError


def printed(*arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_explain_without_a_file() -> None:
    text = printed("config", "explain", "dataflow.buffer.max_staleness")
    for word in ("int ≥ 0", "default   2", "read by"):
        assert word in text


def test_explain_with_a_file_and_an_override(run_yaml: Path) -> None:
    text = printed("config", "explain", "seed", run_yaml, "seed=9")
    assert "set at    override 'experiment.seed=9'" in text


def test_show_is_yaml(run_yaml: Path) -> None:
    assert yaml.safe_load(printed("config", "show", run_yaml))["trainer_model0"]["train_batch_size"] == 32


def test_schema_is_json() -> None:
    assert yaml.safe_load(printed("config", "schema"))["title"] == "RunConfig"


def test_diff(run_yaml: Path) -> None:
    assert printed("config", "diff", run_yaml, run_yaml) == "no difference\n"


def test_an_unknown_key_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        CliRunner().invoke(app, ["config", "explain", "max_stalenes"], catch_exceptions=False)
