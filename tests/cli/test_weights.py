"""The commands around weight versions, on a run directory with one version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import lay_out
from astraflow.core.weight_manager.version_log import VersionLog, published_log, served_log
from astraflow.errors import ConfigError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    manifest = build_manifest("model0", 0, lay_out([("w", (4,), "float32")]), np.zeros(16, np.uint8).data)
    VersionLog(published_log(tmp_path, "model0"), lambda: 0.0).published(manifest)
    served = VersionLog(served_log(tmp_path, "raas-0"), lambda: 0.0)
    served.served("raas-0", manifest, "full", 16, {"pull_s": 0.0125}, 0.002)
    return tmp_path


def test_verify_says_what_it_checked(run: Path) -> None:
    result = CliRunner().invoke(app, ["weights", "verify", str(run)])
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == "1 versions published, 1 times proven by an engine"
    assert result.output.splitlines()[-1] == "everything resolves"


def test_verify_fails_where_something_is_wrong(run: Path) -> None:
    VersionLog(served_log(run, "raas-0")).alarm("raas-0", "model0", 0, "canaries are off")
    result = CliRunner().invoke(app, ["weights", "verify", str(run)])
    assert result.exit_code == 1
    assert "wrong: model0: alarm of raas-0 at version 0: canaries are off" in result.output


def test_inspect_version_shows_tensors_and_who_served_it(run: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", "version", "0", str(run)])
    assert result.exit_code == 0
    assert "published 1970-01-01 00:00:00 UTC" in result.output
    assert "served by raas-0: full, 16 bytes, pull_s 12.5 ms, canaries off by 0.002 nats" in result.output
    assert result.output.rstrip().endswith("float32 [4] w")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["7", "RUN"], "no version 7; model0: 0 to 0"), (["0", "RUN", "--model", "x"], "no model x; it has model0")],
)
def test_what_is_not_there_is_named(run: Path, arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["inspect", "version", *(str(run) if a == "RUN" else a for a in arguments)])
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
