import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from astraflow.core.config import read_settings, write_settings
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.config import DataflowSettings
from astraflow.launch.config import RunConfig, load_config_tree
from astraflow.launch.specs import ModelPaths, ProcessSpec, dataflow_spec, raas_specs, sft_spec, trainer_specs
from astraflow.raas.config import RaaSSettings
from astraflow.train_worker.config import SFTSettings, TrainWorkerSettings

PATHS = ModelPaths("/models/base", "/models/tokenizer")
URL = "http://127.0.0.1:8000"


@dataclass
class Planned:
    config: RunConfig
    run_dir: RunDirectory

    def all(self) -> list[ProcessSpec]:
        given = (self.config, self.run_dir, PATHS)
        return [dataflow_spec(*given), *raas_specs(*given, URL), *trainer_specs(*given, URL)]


@pytest.fixture
def planned(run_yaml: Path, tmp_path: Path) -> Planned:
    overrides = [
        "raas.instances=2",
        "raas.threads=3",
        "trainer_base.threads=2",
        "raas.models.model0.gconfig.temperature=0.8",
        "dataflow.workflow_spec.gconfig_overrides.max_new_tokens=12",
    ]
    return Planned(load_config_tree([run_yaml], overrides)[0], RunDirectory(tmp_path / "run", create=False))


def test_processes_have_the_names_and_modules_of_the_programs(planned: Planned) -> None:
    assert {spec.name: spec.module for spec in planned.all()} == {
        "dataflow": "astraflow.dataflow.app",
        "raas-0": "astraflow.raas.app",
        "raas-1": "astraflow.raas.app",
        "train_worker-model0": "astraflow.train_worker.app",
    }


def test_a_command_names_its_settings_file(planned: Planned) -> None:
    spec = planned.all()[1]
    settings = planned.run_dir.root / "settings" / "raas-0.json"
    assert spec.argv == (sys.executable, "-m", "astraflow.raas.app", "--settings", str(settings))
    assert spec.log_path == planned.run_dir.root / "logs" / "raas-0.log"


def test_each_process_gets_its_threads(planned: Planned) -> None:
    threads = {spec.name: spec.env["OMP_NUM_THREADS"] for spec in planned.all()}
    assert threads == {"dataflow": "1", "raas-0": "3", "raas-1": "3", "train_worker-model0": "2"}


def test_values_that_several_need_agree(planned: Planned) -> None:
    dataflow, raas, other, trainer = (spec.settings for spec in planned.all())
    assert isinstance(dataflow, DataflowSettings)
    assert isinstance(raas, RaaSSettings)
    assert isinstance(other, RaaSSettings)
    assert isinstance(trainer, TrainWorkerSettings)
    assert trainer.n_samples == dataflow.gconfigs["model0"].n_samples == 4
    assert trainer.max_new_tokens == 12
    assert trainer.temperature == 0.8
    assert raas.dataflow_urls == [trainer.dataflow_url] == [URL]
    assert raas.model_paths == {"model0": trainer.model_path} == {"model0": "/models/base"}
    assert raas.tokenizer_path == dataflow.tokenizer_path == "/models/tokenizer"
    assert {each.run_dir for each in (dataflow, raas, other, trainer)} == {str(planned.run_dir.root)}


def test_settings_are_read_as_they_were_written(planned: Planned) -> None:
    for spec in planned.all():
        write_settings(spec.settings, spec.settings_path)
        assert read_settings(type(spec.settings), spec.settings_path) == spec.settings


def test_the_base_model_has_a_process_of_its_own(planned: Planned, tmp_path: Path) -> None:
    spec = sft_spec(planned.config, planned.run_dir, tmp_path / "out")
    assert spec.module == "astraflow.train_worker.trainer.sft"
    assert isinstance(spec.settings, SFTSettings)
    assert spec.settings.output_dir == str(tmp_path / "out")
    assert spec.env["OMP_NUM_THREADS"] == str(planned.config.base_model.threads)


def test_planning_writes_nothing(planned: Planned) -> None:
    planned.all()
    assert not planned.run_dir.root.exists()


def test_paths_of_model_and_tokenizer(planned: Planned, tmp_path: Path) -> None:
    assert ModelPaths.of(planned.config, tmp_path) == ModelPaths(str(tmp_path), str(tmp_path))
    given = planned.config.experiment.model_copy(update={"tokenizer_path": str(tmp_path / "t")})
    config = dataclasses.replace(planned.config, experiment=given)
    assert ModelPaths.of(config, tmp_path) == ModelPaths(str(tmp_path), str(tmp_path / "t"))
