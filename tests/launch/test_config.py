from pathlib import Path

import pytest

from astraflow.core.config import to_yaml
from astraflow.errors import ConfigError
from astraflow.launch.config import load_config_tree, overridden


def test_what_several_programs_need_is_derived_once(run_yaml: Path) -> None:
    config, _ = load_config_tree([run_yaml], ["raas.models.model0.gconfig.temperature=0.7"])
    assert config.model_ids == ("model0",)
    assert config.n_samples("model0") == 4
    assert config.groups_per_batch("model0") == 8
    assert config.training_gconfig("model0").temperature == 0.7
    assert config.staleness_bound == 2


def test_the_workflow_overrides_the_models_sampling(run_yaml: Path) -> None:
    config, _ = load_config_tree([run_yaml], ["dataflow.workflow_spec.gconfig_overrides.n_samples=2"])
    assert config.n_samples("model0") == 2
    assert config.groups_per_batch("model0") == 16
    sums = config.dataflow.eval_workflows["sums"]
    assert overridden(config.gconfigs["model0"], sums).n_samples == 2


def test_a_trainer_section_goes_on_top_of_trainer_base(run_yaml: Path) -> None:
    run_yaml.write_text(
        run_yaml.read_text()
        + "  actor: {eps_clip: 0.3, optimizer: {lr: 1e-3, beta2: 0.95}}\n"
        + "trainer_model0:\n  actor: {optimizer: {lr: 5e-4}}\n"
    )
    config, _ = load_config_tree([run_yaml])
    actor = config.trainers["model0"].actor
    assert (actor.eps_clip, actor.optimizer.lr, actor.optimizer.beta2) == (0.3, 5e-4, 0.95)


def test_models_without_a_section_share_trainer_base(run_yaml: Path) -> None:
    config, _ = load_config_tree([run_yaml], ["raas.models.model1.gconfig.n_samples=2", "trainer_model1.threads=2"])
    assert {name: trainer.threads for name, trainer in config.trainers.items()} == {"model0": 1, "model1": 2}
    assert config.trainers["model1"].train_batch_size == 32


def test_seed_is_short_for_experiment_seed(run_yaml: Path) -> None:
    config, _ = load_config_tree([run_yaml], ["seed=7"])
    assert config.experiment.seed == 7


def test_the_resolved_values_load_to_the_same_configuration(run_yaml: Path, tmp_path: Path) -> None:
    overrides = ["raas.models.model0.backend=scripted", "rollout.reward_workers=0", "trainer_model0.threads=2"]
    config, _ = load_config_tree([run_yaml], overrides)
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(to_yaml(config.values()))
    again, _ = load_config_tree([resolved])
    assert again == config
    # what has no effect is not written, so that it is not refused when read
    assert "reward_timeout_s" not in config.values()["rollout"]
    assert "embedded" not in config.values()["raas"]["models"]["model0"]


def test_another_model_to_start_from_takes_the_base_models_place(run_yaml: Path, tmp_path: Path) -> None:
    config, _ = load_config_tree([run_yaml])
    started = config.starting_from(tmp_path / "checkpoint")
    assert started.base_model is None
    assert started.experiment.model_path == str(tmp_path / "checkpoint")


@pytest.mark.parametrize("model_id", ["base", "a.b", "a b"])
def test_model_names_that_cannot_be_used(run_yaml: Path, model_id: str) -> None:
    run_yaml.write_text(run_yaml.read_text().replace("    model0:", f"    {model_id}:"))
    with pytest.raises(ConfigError, match="a model is named by"):
        load_config_tree([run_yaml])
