"""Invariant 7 beyond types: names exist, files are there, keys have an effect, values fit each other.

Each rule yields (path of the key, what is wrong); the caller adds where the key was set. Nothing heavy is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from astraflow.core.config import Tree
from astraflow.core.data import GenerationHyperparameters
from astraflow.core.dataset.registry import DATASET_REGISTRY
from astraflow.core.observability.stats_logger import missing_packages
from astraflow.core.workflow.registry import REWARD_EXTRAS, REWARD_REGISTRY, WORKFLOW_REGISTRY
from astraflow.dataflow.config import DatasetConfig, WorkflowConfig
from astraflow.errors import ConfigError, DataError, UnknownNameError, is_utf8
from astraflow.launch.catalog import presets, reasoning_gym_datasets, reasoning_gym_settings
from astraflow.launch.config import TRAINER, RunConfig, load_config_tree, overridden
from astraflow.launch.model_source import complaint as model_complaint
from astraflow.launch.signatures import signature_of
from astraflow.registry import find_module
from astraflow.train_worker.config import SFTDatasetConfig

Complaint = tuple[str, str]

PASSED_TO_DATASETS = frozenset({"max_length", "split", "tokenizer"})
PASSED_TO_WORKFLOWS = frozenset({"gconfig", "reward_fn", "tokenizer"})
_DATA_FILES = (".arrow", ".csv", ".json", ".jsonl", ".parquet", ".txt")
_REASONING_GYM = ("astraflow.core.dataset.reasoning_gym", "astraflow.dataflow.dataset.reasoning_gym")


def load_config(files: Iterable[Path], overrides: Iterable[str] = (), checkpoint: Path | None = None) -> RunConfig:
    """Return the checked configuration of a run, or raise one ConfigError with a line for each wrong key.

    `checkpoint` replaces what the configuration says about the model to start from.
    """
    config, tree = load_config_tree(files, overrides)
    if checkpoint is not None:
        if (missing := model_complaint(str(checkpoint))) is not None:
            raise ConfigError(f"CHECKPOINT: {missing}")
        config = config.starting_from(checkpoint)
    wrong = [f"{tree.origin(path)}: {path}: {text}" for path, text in complaints(config, tree)]
    if wrong:
        raise ConfigError("\n".join(dict.fromkeys(wrong)))
    return config


def complaints(config: RunConfig, tree: Tree) -> Iterator[Complaint]:
    """Yield what is wrong with a typed configuration."""
    yield from _paths(config)
    yield from _start(config)
    yield from _models(config)
    yield from _workflows(config)
    yield from _datasets(config)
    yield from _sinks(config)
    yield from _without_effect(config, tree)


def _paths(config: RunConfig) -> Iterator[Complaint]:
    """Paths that the run's JSON files, which are UTF-8, cannot name: those of a working directory, mostly."""
    experiment = config.experiment
    named = {"fileroot": experiment.fileroot, "model_path": experiment.model_path}
    for key, path in (named | {"tokenizer_path": experiment.tokenizer_path}).items():
        if path is not None and not is_utf8(whole := str(Path(path).expanduser().absolute())):
            yield f"experiment.{key}", f"{whole!a} is not UTF-8; a run needs a path that is"


def _start(config: RunConfig) -> Iterator[Complaint]:
    """What the run starts from."""
    model_path, tokenizer_path = config.experiment.model_path, config.experiment.tokenizer_path
    if model_path is not None and config.base_model is not None:
        yield "experiment.model_path", "a run starts from model_path or from base_model, not from both"
    elif model_path is not None:
        directory = Path(model_path).expanduser()
        wrong = model_complaint(model_path)
        if wrong is not None:
            yield "experiment.model_path", wrong
        elif tokenizer_path is None and directory.is_dir() and not (directory / "tokenizer.json").is_file():
            yield "experiment.tokenizer_path", f"a value is required: {model_path} has no tokenizer.json"
    elif config.base_model is None:
        yield "experiment.model_path", "a value is required (a directory or a name), or a base_model section"
    if tokenizer_path is not None and not (Path(tokenizer_path).expanduser() / "tokenizer.json").is_file():
        yield "experiment.tokenizer_path", f"there is no tokenizer.json in {tokenizer_path}"
    if config.base_model is not None and config.base_model.preset not in presets():
        yield "base_model.preset", str(UnknownNameError("preset", config.base_model.preset, presets()))


def _models(config: RunConfig) -> Iterator[Complaint]:
    """Sampling and batch of each model."""
    scaling = config.raas.scaling
    if scaling is not None and not scaling.min_instances <= config.raas.instances <= scaling.max_instances:
        limits = f"{scaling.min_instances} to {scaling.max_instances}"
        yield "raas.instances", f"{config.raas.instances} is not within the limits of raas.scaling, {limits}"
    if config.raas.port and scaling is not None:
        yield "raas.port", f"the processes of raas.scaling cannot share port {config.raas.port}; leave it 0"
    if config.raas.port and config.raas.instances > 1:
        yield "raas.port", f"{config.raas.instances} instances cannot share port {config.raas.port}; leave it 0"
    for model_id in config.model_ids:
        try:
            gconfig = config.training_gconfig(model_id)
        except DataError:
            continue  # _workflows reports it
        yield from _training_sampling(config, model_id, gconfig)
        trainer = config.trainers[model_id]
        at = f"{TRAINER}{model_id}"
        if trainer.train_batch_size % gconfig.n_samples:
            yield (
                f"{at}.train_batch_size",
                f"{trainer.train_batch_size} samples do not make whole groups of n_samples = {gconfig.n_samples}",
            )
        groups = trainer.train_batch_size // gconfig.n_samples
        if trainer.actor.ppo_n_minibatches > groups:
            yield (
                f"{at}.actor.ppo_n_minibatches",
                f"{groups} groups, which stay whole, cannot make {trainer.actor.ppo_n_minibatches} minibatches",
            )
        most = config.dataflow.buffer.max_groups
        if most is not None and most < groups:
            yield "dataflow.buffer.max_groups", f"{most}: a batch of {at} takes {groups} groups"
        norm = trainer.actor.reward_norm
        if gconfig.n_samples == 1 and norm is not None and norm.mean_level == "group":
            yield (
                f"{at}.actor.reward_norm.mean_level",
                "group: with n_samples 1 every advantage would be 0; use batch or none",
            )
        smallest = config.dataflow.buffer.min_group_size
        if smallest is not None and smallest > gconfig.n_samples:
            yield (
                "dataflow.buffer.min_group_size",
                f"{smallest} is more than the {gconfig.n_samples} samples of a group",
            )


def _training_sampling(config: RunConfig, model_id: str, gconfig: GenerationHyperparameters) -> Iterator[Complaint]:
    """LAW 15: what is trained on is sampled from the full support, so that an unchanged policy's ratios are 1."""
    refused = {
        "top_p": gconfig.top_p < 1,
        "top_k": gconfig.top_k > 0,
        "frequency_penalty": gconfig.frequency_penalty != 0,
        "min_new_tokens": gconfig.min_new_tokens > 0,
        "greedy": gconfig.greedy,
    }
    for field, holds in refused.items():
        if holds:
            yield (
                _gconfig_path(config, model_id, field),
                f"{getattr(gconfig, field)}: training rollouts sample the full distribution, since the trainer cannot "
                "recompute logprobs on another support; set it in an evaluation workflow",
            )


def _gconfig_path(config: RunConfig, model_id: str, field: str) -> str:
    if field in config.dataflow.workflow_spec.gconfig_overrides:
        return f"dataflow.workflow_spec.gconfig_overrides.{field}"
    return f"raas.models.{model_id}.gconfig.{field}"


def _workflows(config: RunConfig) -> Iterator[Complaint]:
    yield from _workflow(config, "dataflow.workflow_spec", config.dataflow.workflow_spec)
    for name, workflow in config.dataflow.eval_workflows.items():
        yield from _workflow(config, f"dataflow.eval_workflows.{name}", workflow)


def _workflow(config: RunConfig, at: str, workflow: WorkflowConfig) -> Iterator[Complaint]:
    for gconfig in config.gconfigs.values():
        try:
            overridden(gconfig, workflow)
        except DataError as error:
            yield f"{at}.gconfig_overrides", str(error)
    if workflow.reward_fn is not None:
        try:
            REWARD_REGISTRY.check(workflow.reward_fn)
        except ConfigError as error:
            yield f"{at}.reward_fn", str(error)
        package, extra = REWARD_EXTRAS.get(workflow.reward_fn, ("", ""))
        if package and find_module(package) is None:
            yield f"{at}.reward_fn", f"reward {workflow.reward_fn} needs an extra: pip install 'astraflow[{extra}]'"
    try:
        WORKFLOW_REGISTRY.check(workflow.workflow_cls)
    except ConfigError as error:
        yield f"{at}.workflow_cls", str(error)
        return
    target = WORKFLOW_REGISTRY.target(workflow.workflow_cls)
    signature = signature_of(target) if target else None
    if signature is None:
        return
    if "reward_fn" in signature.required and workflow.reward_fn is None:
        yield f"{at}.reward_fn", f"a value is required by workflow {workflow.workflow_cls}"
    if workflow.reward_fn is not None and "reward_fn" not in signature.types and not signature.open:
        yield f"{at}.reward_fn", f"workflow {workflow.workflow_cls} gives the reward itself and takes no reward_fn"
    wrong = signature.complaints(workflow.keywords, PASSED_TO_WORKFLOWS, f"workflow {workflow.workflow_cls}")
    yield from ((f"{at}.{key}", text) for key, text in wrong.items())


def _datasets(config: RunConfig) -> Iterator[Complaint]:
    yield from _dataset("dataflow.rollout_dataset", config.dataflow.rollout_dataset)
    for name, further in config.dataflow.mixture.items():
        yield from _dataset(f"dataflow.mixture.{name}", further)
    for name, dataset in config.dataflow.eval_datasets.items():
        yield from _dataset(f"dataflow.eval_datasets.{name}", dataset)
    if config.base_model is not None:
        yield from _dataset("base_model.dataset", config.base_model.dataset)


def _dataset(at: str, dataset: DatasetConfig | SFTDatasetConfig) -> Iterator[Complaint]:
    try:
        DATASET_REGISTRY.check(dataset.dataset_fn)
    except ConfigError as error:
        yield f"{at}.dataset_fn", str(error)
        return
    target = DATASET_REGISTRY.target(dataset.dataset_fn)
    signature = signature_of(target) if target else None
    keywords = dataset.keywords
    if signature is not None:
        wrong = signature.complaints(keywords, PASSED_TO_DATASETS, f"dataset {dataset.dataset_fn}")
        yield from ((f"{at}.{key}", text) for key, text in wrong.items())
        keywords = {key: value for key, value in {**signature.defaults, **keywords}.items() if key not in wrong}
    yield from _files(at, keywords)
    if target and target.partition(":")[0] in _REASONING_GYM:
        yield from _reasoning_gym(at, keywords)


def _files(at: str, keywords: dict[str, Any]) -> Iterator[Complaint]:
    """Local files and folders exist; a name on a hub is not a file."""
    for key, value in keywords.items():
        if key not in ("path", "offline_dir") or not isinstance(value, str):
            continue
        local = key == "offline_dir" or value.startswith(("/", "./", "../", "~")) or value.endswith(_DATA_FILES)
        if local and not Path(value).expanduser().exists():
            yield f"{at}.{key}", f"there is no file or folder {value}"


def _reasoning_gym(at: str, keywords: dict[str, Any]) -> Iterator[Complaint]:
    name, params = keywords.get("name"), keywords.get("params")
    if not isinstance(name, str):
        return
    if name not in reasoning_gym_datasets():
        yield f"{at}.name", str(UnknownNameError("reasoning_gym dataset", name, list(reasoning_gym_datasets())))
        return
    settings = reasoning_gym_settings(name)
    if settings is not None and isinstance(params, dict):
        wrong = settings.complaints(params, frozenset({"seed", "size"}), f"reasoning_gym dataset {name}")
        yield from ((f"{at}.params.{key}", text) for key, text in wrong.items())


def _sinks(config: RunConfig) -> Iterator[Complaint]:
    """Sinks whose package is not installed."""
    for model_id, trainer in config.trainers.items():
        for name, text in missing_packages(trainer.stats_logger).items():
            yield f"{TRAINER}{model_id}.stats_logger.{name}", text


def _without_effect(config: RunConfig, tree: Tree) -> Iterator[Complaint]:
    """LAW 34: keys that were set but belong to something that is not selected."""
    for path, reason in config.unused.items():
        if tree.is_set(path):
            yield path, f"has no effect: {reason}"
