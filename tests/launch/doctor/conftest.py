"""A machine on which nothing is wrong, and what checks find in a configuration on it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow.core.data.trajectory import Row
from astraflow.core.model import PRESETS
from astraflow.core.text import load_tokenizer, tiny_tokenizer
from astraflow.launch.config import load_config_tree
from astraflow.launch.doctor import Finding, Machine, Severity, batch, disk, memory, ports, template, threads, weights
from astraflow.launch.doctor.subject import Subject

GIB = 2**30
CHECKS = (threads, memory, weights, batch, template, ports, disk)


@pytest.fixture
def here() -> Machine:
    """A machine for which the tests' configuration is right."""
    return Machine(cores=2, memory=16 * GIB, memory_available=12 * GIB, shares_memory=True, gpus=0)


@pytest.fixture
def subject(run_yaml: Path, here: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Subject]:
    """The tests' configuration with overrides and a few rows."""
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path / "cache"))

    def make(*overrides: str, on: Machine = here, rows: int = 40) -> Subject:
        config, tree = load_config_tree([run_yaml], overrides)
        path = config.experiment.tokenizer_path
        tokenizer = tiny_tokenizer() if path is None else load_tokenizer(path)
        table: list[Row] = [{"messages": [{"role": "user", "content": f"{i}+1"}]} for i in range(rows)]
        return Subject(config, tree, on, tokenizer, PRESETS["tiny-1m"], {"dataflow.rollout_dataset": table})

    return make


@pytest.fixture
def findings(subject: Callable[..., Subject]) -> Callable[..., list[Finding]]:
    """What all checks of a configuration on a machine find, without those of its data and reward."""

    def run(*overrides: str, **others: object) -> list[Finding]:
        given = subject(*overrides, **others)
        return [f for check in CHECKS for f in check.check(given) if f.severity is not Severity.OK]

    return run


@pytest.fixture
def one(findings: Callable[..., list[Finding]]) -> Callable[..., Finding]:
    """The one finding, which must be of the check that is named and say a remedy."""

    def run(check: str, *overrides: str, **others: object) -> Finding:
        found = findings(*overrides, **others)
        assert [f.check for f in found] == [check], found
        assert found[0].remedy
        return found[0]

    return run
