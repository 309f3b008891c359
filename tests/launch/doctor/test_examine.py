import importlib
from pathlib import Path

import pytest

from astraflow.launch.doctor import Machine, Severity, examine
from astraflow.launch.doctor.examine import worst

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
CHECKS = [
    "machine",
    "configuration",
    "threads",
    "memory",
    "weights",
    "batch",
    "template",
    "data",
    "gold",
    "ports",
    "disk",
]


def test_the_quickstart_is_clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, here: Machine) -> None:
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path))
    found = examine([QUICKSTART], [f"experiment.fileroot={tmp_path}"], here=here)
    assert [f for f in found if f.severity is not Severity.OK] == []
    assert list(dict.fromkeys(f.check for f in found)) == CHECKS


def test_without_a_file_the_machine_is_looked_at() -> None:
    assert [f.check for f in examine([], here=Machine.here())] == ["machine"]


def test_a_configuration_that_does_not_load_is_told_and_nothing_else(run_yaml: Path, here: Machine) -> None:
    found = examine([run_yaml], ["seed=x", "dataflow.buffer.max_stalenes=1"], here=here)
    assert [f.check for f in found] == ["machine", "configuration", "configuration"]
    assert "did you mean 'max_staleness'?" in "".join(map(str, found))
    assert worst(found) is Severity.ERROR


def test_what_a_run_refuses_is_told_with_where_it_was_set(run_yaml: Path, here: Machine) -> None:
    override = "raas.models.model0.gconfig.top_p=0.9"
    found = [f for f in examine([run_yaml], [override], here=here) if f.severity is not Severity.OK]
    assert [(f.check, f.key) for f in found] == [("configuration", "raas.models.model0.gconfig.top_p")]
    assert "override 'raas.models.model0.gconfig.top_p=0.9'" in found[0].remedy


def test_a_model_that_is_still_to_be_fetched_is_a_warning(run_yaml: Path, here: Machine) -> None:
    overrides = ["base_model=null", "experiment.model_path=someone/some-model", "dataflow.rollout_dataset.size=20"]
    found = examine([run_yaml], overrides, here=here)
    bad = [f for f in found if f.severity is not Severity.OK]
    assert [(f.check, f.severity) for f in bad] == [("model", Severity.WARNING)]
    assert "which fetches it" in bad[0].remedy
    assert "memory" not in {f.check for f in found}


def test_a_model_that_a_package_carries_is_converted(
    run_yaml: Path, here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("astraflow.launch.doctor.examine")
    monkeypatch.setattr(module, "PACKAGED", {"someone/some-model": None})
    overrides = ["base_model=null", "experiment.model_path=someone/some-model", "dataflow.rollout_dataset.size=20"]
    [finding] = [f for f in examine([run_yaml], overrides, here=here) if f.check == "model"]
    assert "which converts it" in finding.remedy


def test_a_model_that_cannot_be_read_is_an_error(run_yaml: Path, tmp_path: Path, here: Machine) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    found = examine([run_yaml], ["base_model=null", f"experiment.model_path={tmp_path}"], here=here)
    assert "model" in [f.check for f in found if f.severity is Severity.ERROR]


def test_the_worst_of_nothing_is_ok() -> None:
    assert worst([]) is Severity.OK
