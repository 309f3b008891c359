import os

import pytest

from astraflow.launch.doctor import Machine, Severity
from astraflow.launch.doctor import machine as module


def test_this_machine() -> None:
    here = Machine.here()
    assert 1 <= here.cores <= (os.cpu_count() or 1)
    assert 0 < here.memory_available <= here.memory


def test_it_is_told_in_one_line(here: Machine) -> None:
    (found,) = module.check(here)
    assert found.severity is Severity.OK
    assert "2 cores, 16.0 GiB of memory (12.0 available)" in found.message


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch, here: Machine) -> None:
    monkeypatch.setattr(module, "_PACKAGES", ("torch", "no-such-package"))
    (found,) = module.check(here)
    assert found.severity is Severity.ERROR
    assert "not installed: no-such-package" in found.message
