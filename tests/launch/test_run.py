import io
from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.launch.run import open_run_directory
from astraflow.launch.view import PlainView


def test_an_earlier_run_is_moved_aside_and_never_mixed(tmp_path: Path) -> None:
    said = io.StringIO()
    for number in range(3):
        run_dir = open_run_directory(tmp_path / "run", PlainView(said))
        assert not run_dir.config.exists()
        run_dir.config.write_text(f"run: {number}")
        run_dir.release()
    assert [(tmp_path / name / "config.yaml").read_text() for name in ("run", "run.1", "run.2")] == [
        "run: 2",
        "run: 0",
        "run: 1",
    ]
    assert f"is now {tmp_path / 'run.1'}" in said.getvalue()


def test_a_directory_of_a_living_run_is_refused(tmp_path: Path) -> None:
    view = PlainView(io.StringIO())
    run_dir = open_run_directory(tmp_path / "run", view)
    run_dir.config.write_text("")
    with pytest.raises(ConfigError, match="in use by another run"):
        open_run_directory(tmp_path / "run", view)
    assert run_dir.config.exists()
    run_dir.release()
