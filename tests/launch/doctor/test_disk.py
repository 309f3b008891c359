from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from astraflow.core.model import PRESETS
from astraflow.launch.base_model import cache_path
from astraflow.launch.doctor import Finding, Severity
from astraflow.launch.doctor.disk import RECORDS, check, checkpoint_bytes
from astraflow.launch.doctor.memory import parameters
from astraflow.launch.doctor.subject import Subject

MODEL = PRESETS["tiny-1m"]


def free(size: int) -> Callable[[Path], SimpleNamespace]:
    return lambda place: SimpleNamespace(free=size)


def test_no_space(subject: Callable[..., Subject]) -> None:
    base_model = subject().config.base_model
    assert base_model is not None
    cache_path(base_model).mkdir(parents=True)
    needed = RECORDS + 4 * parameters(MODEL)
    assert [f.severity for f in check(subject(), free(needed))] == [Severity.OK]
    (found,) = check(subject(), free(needed - 1))
    assert (found.check, found.severity, found.key) == ("disk", Severity.ERROR, "experiment.fileroot")
    assert "0.20 GiB, 0.20 are free" in found.message


def test_the_base_model_needs_space_while_it_is_not_cached(subject: Callable[..., Subject]) -> None:
    assert [f.key for f in check(subject(), free(0))] == ["experiment.fileroot", "base_model"]


@pytest.mark.parametrize(("freq", "count"), [("null", 1), ("5", 2), ("3", 4)])
def test_every_checkpoint_counts(subject: Callable[..., Subject], freq: str, count: int) -> None:
    saved = checkpoint_bytes(subject(f"+trainer_base.saver.freq_steps={freq}"))
    assert saved == count * 4 * parameters(MODEL)


def test_a_place_that_cannot_be_written_to(one: Callable[..., Finding], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = one("disk", f"experiment.fileroot={tmp_path}/file/run")
    assert "cannot be written to" in found.message
