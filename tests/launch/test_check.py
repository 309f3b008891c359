"""Every wrong input is one line that says where it was set, what is wrong and what is known."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.launch.check import load_config

RIGHT: dict[str, list[str]] = {
    "as it is": [],
    "a reward from a module": ["dataflow.workflow_spec.reward_fn=astraflow.core.dataset.reasoning_gym:score"],
    "a dataset by its name": ["dataflow.rollout_dataset.dataset_fn=reasoning_gym"],
    "a workflow's own key": ["dataflow.workflow_spec.enable_thinking=false"],
    "restricted sampling in evaluation": ["dataflow.eval_workflows.sums.gconfig_overrides.top_p=0.9"],
    "one sample without group statistics": [
        "raas.models.model0.gconfig.n_samples=1",
        "trainer_base.actor.reward_norm=null",
    ],
}

WRONG: list[tuple[str, list[str]]] = [
    # unknown keys, at every depth
    ("nothing=1", ["nothing: unknown key", "known here", "experiment"]),
    ("nothing.deeper=1", ["override 'nothing.deeper=1'", "nothing: unknown key"]),
    ("experiment.sed=3", ["experiment.sed: unknown key", "did you mean 'seed'?", "known here"]),
    ("dataflow.bufer.max_staleness=1", ["dataflow.bufer: unknown key", "did you mean 'buffer'?"]),
    ("dataflow.buffer.max_stalenes=1", ["dataflow.buffer.max_stalenes", "did you mean 'max_staleness'?"]),
    ("raas.models.model0.backnd=embedded", ["raas.models.model0.backnd", "did you mean 'backend'?"]),
    ("raas.models.model0.gconfig.temprature=1", ["temprature: unknown key", "did you mean 'temperature'?"]),
    ("trainer_base.actor.optimizer.lrr=1", ["actor.optimizer.lrr", "did you mean 'lr'?", "weight_decay"]),
    ("trainer_model0.actor.eps_clp=1", ["trainer_model0.actor.eps_clp", "did you mean 'eps_clip'?"]),
    ("trainer_modl0.threads=1", ["no such model", "did you mean 'trainer_model0'?", "known: trainer_base"]),
    ("base_model.prest=tiny-1m", ["base_model.prest", "did you mean 'preset'?"]),
    ("dataflow.rollout_dataset.sise=5", ["rollout_dataset.sise: unknown key", "did you mean 'size'?", "takes: name"]),
    ("dataflow.rollout_dataset.params.max_digitz=3", ["params.max_digitz", "did you mean 'max_digits'?"]),
    ("dataflow.workflow_spec.enable_thinkin=true", ["did you mean 'enable_thinking'?", "workflow rlvr takes"]),
    ("dataflow.workflow_spec.gconfig_overrides.n_sample=2", ["n_sample: unknown key", "did you mean 'n_samples'?"]),
    # wrong types and ranges
    ("seed=x", ["override 'experiment.seed=x'", "experiment.seed", "valid integer", "'x'"]),
    ("trainer_base.total_train_steps=0", ["total_train_steps", "greater than or equal to 1"]),
    ("trainer_base.actor.optimizer.lr=fast", ["actor.optimizer.lr", "valid number", "'fast'"]),
    ("raas.models.model0.gconfig.n_samples=four", ["gconfig", "Expected `int`, got `str`"]),
    ("raas.models.model0.gconfig.temperature=0", ["gconfig.temperature = 0", "out of range"]),
    ("dataflow.rollout_dataset.size=many", ["rollout_dataset.size", "Expected `int`, got `str`", "'many'"]),
    ("dataflow.rollout_dataset.split=train2", ["rollout_dataset.split", "Invalid enum value 'train2'"]),
    ("dataflow.rollout_dataset.params.max_digits=two", ["params.max_digits", "Expected `int`"]),
    ("dataflow.workflow_spec.gconfig_overrides.top_p=2", ["gconfig.top_p = 2", "out of range"]),
    ("trainer_base.actor.loss=pppo", ["actor.loss", "'ppo', 'decoupled' or 'm2po'"]),
    ("dataflow=3", ["override 'dataflow=3'", "should be an object, got 3"]),
    # names
    ("dataflow.workflow_spec.workflow_cls=rlvrr", ["unknown workflow 'rlvrr'", "did you mean 'rlvr'?", "known: rlvr"]),
    ("dataflow.workflow_spec.reward_fn=math_verif", ["unknown reward", "did you mean 'math_verify'?", "known:"]),
    ("dataflow.workflow_spec.reward_fn=astraflow.core.dataset.reasoning_gym:scor", ["did you mean 'score'?"]),
    ("dataflow.workflow_spec.reward_fn=no_such_module:fn", ["there is no module no_such_module"]),
    ("dataflow.rollout_dataset.dataset_fn=nowhere:fn", ["rollout_dataset.dataset_fn", "no module nowhere"]),
    ("dataflow.rollout_dataset.dataset_fn=gsm9k", ["unknown dataset 'gsm9k'", "did you mean 'gsm8k'?", "known:"]),
    ("dataflow.rollout_dataset.dataset_fn=a/b:c", ["not of the form package.module:name"]),
    (
        "dataflow.rollout_dataset.name=chain_summ",
        ["unknown reasoning_gym dataset", "did you mean 'chain_sum'?", "known:"],
    ),
    ("dataflow.rollout_dataset.name=null", ["rollout_dataset.name", "Expected `str`"]),
    ("base_model.preset=tiny-1", ["unknown preset 'tiny-1'", "did you mean 'tiny-1m'?", "known: tiny-0"]),
    ("base_model.dataset.name=chain_summ", ["base_model.dataset.name", "did you mean 'chain_sum'?"]),
    ("raas.models.model0.backend=sglan", ["raas.models.model0.backend", "'embedded' or 'scripted'"]),
    ("dataflow.eval_datasets.held_out.eval_workflow=summs", ["'summs' is not in eval_workflows (sums)"]),
    # files
    ("dataflow.rollout_dataset.path=/no/such.jsonl", ["rollout_dataset.path: unknown key", "takes: name"]),
    ("experiment.tokenizer_path=/no/such", ["experiment.tokenizer_path", "no tokenizer.json in /no/such"]),
    ("experiment.model_path=/no/such", ["starts from model_path or from base_model, not from both"]),
    # values that do not fit each other
    ("trainer_base.actor.ppo_n_minibatches=9999", ["ppo_n_minibatches", "groups, which stay whole, cannot make 9999"]),
    ("trainer_base.train_batch_size=30", ["train_batch_size", "30 samples do not make whole groups", "n_samples = 4"]),
    ("raas.models.model0.gconfig.n_samples=1", ["reward_norm.mean_level", "every advantage would be 0"]),
    ("dataflow.buffer.min_group_size=5", ["min_group_size", "more than the 4 samples"]),
    ("trainer_base.actor.m2_threshold=0.04", ["m2_threshold belongs to loss: m2po"]),
    # LAW 15
    ("raas.models.model0.gconfig.top_p=0.9", ["gconfig.top_p", "full distribution", "evaluation workflow"]),
    ("raas.models.model0.gconfig.top_k=20", ["gconfig.top_k", "full distribution"]),
    ("raas.models.model0.gconfig.frequency_penalty=0.5", ["gconfig.frequency_penalty", "full distribution"]),
    ("raas.models.model0.gconfig.min_new_tokens=3", ["gconfig.min_new_tokens", "full distribution"]),
    ("dataflow.workflow_spec.gconfig_overrides.top_p=0.9", ["gconfig_overrides.top_p", "full distribution"]),
    # overrides themselves
    ("+experiment.seed", ["expected key.path=value"]),
    ("+experiment.trial_name=x", ["is set already"]),
    ("experiment.trial_name=${nowhere}", ["interpolation", "nowhere"]),
]


def refusal(files: Sequence[Path], overrides: Sequence[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(files, overrides)
    return str(caught.value)


@pytest.mark.parametrize("overrides", RIGHT.values(), ids=RIGHT)
def test_right_inputs_load(run_yaml: Path, overrides: list[str]) -> None:
    load_config([run_yaml], overrides)


@pytest.mark.parametrize(("override", "words"), WRONG, ids=[override for override, _ in WRONG])
def test_a_wrong_input_is_one_line_with_the_words_that_help(run_yaml: Path, override: str, words: list[str]) -> None:
    message = refusal([run_yaml], [override])
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_key_in_a_file_is_named_by_its_line(run_yaml: Path) -> None:
    lines = run_yaml.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "total_train_steps: 10" in line and n > 20)
    lines[number - 1] = "  total_train_stepz: 10"
    run_yaml.write_text("\n".join(lines))
    assert f"{run_yaml}:{number}: trainer_base.total_train_stepz: unknown key" in refusal([run_yaml], [])


def test_several_mistakes_are_told_at_once(run_yaml: Path) -> None:
    message = refusal([run_yaml], ["base_model.preset=x", "raas.models.model0.gconfig.top_k=3"])
    assert len(message.splitlines()) == 2


@pytest.mark.parametrize("section", ["experiment", "raas", "dataflow", "trainer_base"])
def test_a_missing_section_is_named(run_yaml: Path, tmp_path: Path, section: str) -> None:
    lines = run_yaml.read_text().splitlines()
    kept, skipping = [], False
    for line in lines:
        skipping = line.startswith(f"{section}:") or (skipping and line.startswith(" "))
        kept += [] if skipping else [line]
    run_yaml.write_text("\n".join(kept))
    assert f"{section}: a value is required" in refusal([run_yaml], [])


def test_files_that_are_not_there_or_not_yaml(run_yaml: Path, tmp_path: Path) -> None:
    assert "No such file" in refusal([tmp_path / "nothing.yaml"], [])
    run_yaml.write_text("a: [1\nb: 2\n")
    assert f"{run_yaml}:2: not YAML" in refusal([run_yaml], [])


def test_a_run_starts_from_something(run_yaml: Path, tmp_path: Path) -> None:
    text = run_yaml.read_text()
    start, end = text.index("base_model:"), text.index("raas:")
    run_yaml.write_text(text[:start] + text[end:])
    assert "experiment.model_path: a value is required" in refusal([run_yaml], [])
    assert "no Hugging Face directory" in refusal([run_yaml], [f"experiment.model_path={tmp_path}"])
    (tmp_path / "config.json").write_text("{}")
    assert "has no tokenizer.json" in refusal([run_yaml], [f"experiment.model_path={tmp_path}"])
    (tmp_path / "tokenizer.json").write_text("{}")
    load_config([run_yaml], [f"experiment.model_path={tmp_path}"])


def test_a_checkpoint_is_checked_in_the_models_place(run_yaml: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Hugging Face directory"):
        load_config([run_yaml], checkpoint=tmp_path / "step_000001")


def test_a_reward_whose_package_is_missing_names_the_extra(run_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.launch.check.find_module", lambda name: None)
    message = refusal([run_yaml], ["dataflow.workflow_spec.reward_fn=math_format"])
    assert "workflow_spec.reward_fn: reward math_format needs an extra: pip install 'astraflow[math]'" in message


def test_local_data_files_must_exist(run_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rows.py").write_text("def rows(path: str, offline_dir: str | None = None): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = run_yaml.read_text()
    start, end = text.index("  rollout_dataset:"), text.index("  workflow_spec:")
    run_yaml.write_text(f"{text[:start]}  rollout_dataset: {{dataset_fn: 'my_rows:rows'}}\n{text[end:]}")
    assert "rollout_dataset.path: a value is required" in refusal([run_yaml], [])
    at = "dataflow.rollout_dataset.path="
    assert "there is no file or folder" in refusal([run_yaml], [f"{at}{tmp_path}/rows.jsonl"])
    (tmp_path / "rows.jsonl").write_text("")
    load_config([run_yaml], [f"{at}{tmp_path}/rows.jsonl"])
    load_config([run_yaml], [f"{at}openai/gsm8k"])  # a name on a hub
    wrong = [f"{at}openai/gsm8k", "dataflow.rollout_dataset.offline_dir=/no/such"]
    assert "offline_dir: there is no file or folder /no/such" in refusal([run_yaml], wrong)
