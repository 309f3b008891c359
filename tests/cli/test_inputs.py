from pathlib import Path

import pytest

from astraflow.cli.inputs import split
from astraflow.errors import ConfigError


def test_files_and_overrides_come_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd=name.yaml").write_text("")
    inputs = ["a.yaml", "seed=2", "+x.y={a: 1}", "b.yaml", "odd=name.yaml", "x.model-0.y=a=b"]
    files, overrides = split(inputs)
    assert files == [Path("a.yaml"), Path("b.yaml"), Path("odd=name.yaml")]
    assert overrides == ["seed=2", "+x.y={a: 1}", "x.model-0.y=a=b"]


def test_no_file_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        split(["seed=2"])
