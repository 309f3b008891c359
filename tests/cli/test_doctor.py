import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app
from astraflow.errors import ConfigError


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["doctor", *map(str, arguments)], catch_exceptions=False)
    return done.exit_code, done.output


def test_without_a_file_the_machine_is_told() -> None:
    code, text = run()
    assert code == 0
    assert text.startswith("ok       machine: ")
    assert text.endswith("0 errors, 0 warnings\n")


def test_an_error_is_told_with_its_remedy_and_ends_with_1(run_yaml: Path, tmp_path: Path) -> None:
    code, text = run(run_yaml, "trainer_base.train_batch_size=30", "--json", tmp_path / "found.json")
    assert code == 1
    assert "ERROR    batch: trainer_model0.train_batch_size: 30 samples do not make whole groups" in text
    assert "→ set train_batch_size=28 or 32" in text
    found = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert [f["key"] for f in found if f["severity"] == "error"] == ["trainer_model0.train_batch_size"]


def test_an_answer_needs_its_place() -> None:
    with pytest.raises(ConfigError, match=r"expected \{answer\} in it"):
        run("--answer", "Result")
