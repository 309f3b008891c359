"""The configuration of a whole run, composed from the programs' sections; what several need is derived once, here.

Types and unknown keys are refused here, names, files and combinations in launch.check: all of it before anything starts
and without importing anything heavy, so a typo costs a fraction of a second (invariant 7).
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pydantic import create_model

from astraflow.core.config import ExperimentConfig, Section, Tree, build, load_tree
from astraflow.core.config.ids import MAX_ID
from astraflow.core.data import GenerationHyperparameters
from astraflow.dataflow.config import DataflowConfig, EvalDatasetConfig, WorkflowConfig
from astraflow.errors import ConfigError, DataError, suggestion
from astraflow.raas.config import RaaSConfig, RolloutConfig
from astraflow.train_worker.config import SFTConfig, TrainerConfig

TRAINER = "trainer_"
TRAINER_BASE = "trainer_base"
SHORTHANDS = {"seed": "experiment.seed"}
"""Override keys that stand for a longer path."""

_MODEL_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_ID}}}")


class RunSections(Section):
    """The top level of a configuration; `trainer_<model_id>` is added for each model."""

    experiment: ExperimentConfig
    base_model: SFTConfig | None = None
    """Makes the model that the run starts from, once per configuration and code version."""
    raas: RaaSConfig
    rollout: RolloutConfig = RolloutConfig()
    dataflow: DataflowConfig


@dataclass(frozen=True)
class RunConfig:
    """A run, checked and complete."""

    experiment: ExperimentConfig
    base_model: SFTConfig | None
    raas: RaaSConfig
    rollout: RolloutConfig
    dataflow: DataflowConfig
    trainers: Mapping[str, TrainerConfig]
    """model_id → trainer_base with trainer_<model_id> on top."""

    @property
    def model_ids(self) -> tuple[str, ...]:
        return tuple(self.raas.models)

    @property
    def gconfigs(self) -> dict[str, GenerationHyperparameters]:
        """model_id → sampling before a workflow's overrides."""
        return {model_id: model.gconfig for model_id, model in self.raas.models.items()}

    @property
    def staleness_bound(self) -> int:
        return self.dataflow.buffer.max_staleness

    def training_gconfig(self, model_id: str) -> GenerationHyperparameters:
        """How training rollouts sample: the model's gconfig with the workflow's overrides."""
        return overridden(self.gconfigs[model_id], self.dataflow.workflow_spec)

    def n_samples(self, model_id: str) -> int:
        """Samples of a group."""
        return self.training_gconfig(model_id).n_samples

    def groups_per_batch(self, model_id: str) -> int:
        """B: train_batch_size counts samples, admission and serving count groups."""
        return self.trainers[model_id].train_batch_size // self.n_samples(model_id)

    def starting_from(self, checkpoint: Path) -> RunConfig:
        """The same run from another model; no base model is made."""
        experiment = self.experiment.model_copy(update={"model_path": str(checkpoint)})
        return dataclasses.replace(self, experiment=experiment, base_model=None)

    def values(self) -> dict[str, Any]:
        """The resolved configuration as plain values, loadable again."""
        sections = {
            "experiment": self.experiment,
            "base_model": self.base_model,
            "raas": self.raas,
            "rollout": self.rollout,
            "dataflow": self.dataflow,
            **{f"{TRAINER}{model_id}": trainer for model_id, trainer in self.trainers.items()},
        }
        values = {name: section.model_dump(mode="json") for name, section in sections.items() if section is not None}
        for path in self.unused:
            *parents, key = path.split(".")
            node: Any = values
            for parent in parents:
                node = node.get(parent, {})
            node.pop(key, None)
        return values

    @property
    def unused(self) -> dict[str, str]:
        """Path → why, for each key or section that has no effect in this configuration."""
        out: dict[str, str] = {}
        for model_id, model in self.raas.models.items():
            if model.backend != "embedded":
                out[f"raas.models.{model_id}.embedded"] = f"backend is {model.backend}"
        if self.experiment.weight_transfer_strategies == "full":
            out["raas.delta_full_sync_interval"] = "experiment.weight_transfer_strategies is full"
        if self.rollout.reward_workers == 0:
            out["rollout.reward_timeout_s"] = "rewards run in the RaaS process (reward_workers: 0), without a deadline"
        if not self.dataflow.mixture:
            out["dataflow.rollout_dataset.weight"] = "it is the only rollout dataset (dataflow.mixture is empty)"
        if self.dataflow.group.straggler == "wait":
            out["dataflow.group.patience"] = "straggler is wait"
        if self.dataflow.buffer.replay.ratio == 0:
            out["dataflow.buffer.replay.policy"] = "replay.ratio is 0"
        evaluated = self.dataflow.eval_datasets
        for name in self.dataflow.eval_workflows:
            if name not in {dataset.eval_workflow for dataset in evaluated.values()}:
                out[f"dataflow.eval_workflows.{name}"] = "no entry of eval_datasets uses it"
        if not evaluated:
            out["dataflow.eval"] = "there are no eval_datasets"
        if self.dataflow.eval.mode == "exclusive":
            out["dataflow.eval.share"] = "eval.mode is exclusive"
        sections = {f"{TRAINER}{model_id}": [trainer] for model_id, trainer in self.trainers.items()}
        for section, trainers in {TRAINER_BASE: list(self.trainers.values()), **sections}.items():
            if not evaluated:
                out[f"{section}.evaluator"] = "there are no dataflow.eval_datasets"
            if not any(trainer.recover.enabled for trainer in trainers):
                out |= {f"{section}.recover.{key}": "recover.mode is disabled" for key in ("freq_steps", "retries")}
            if all(trainer.actor.optimizer.lr_scheduler_type == "constant" for trainer in trainers):
                out[f"{section}.actor.optimizer.min_lr_ratio"] = "lr_scheduler_type is constant"
            idle = [trainer.stats_logger.unused for trainer in trainers]
            common = set(idle[0]).intersection(*idle) if idle else set()
            out |= {f"{section}.stats_logger.{key}": idle[0][key] for key in sorted(common)}
        return out


def load_config_tree(files: Iterable[Path], overrides: Iterable[str] = ()) -> tuple[RunConfig, Tree]:
    """Return the typed configuration and where its keys were set; names, files and combinations are not checked yet."""
    tree = load_tree(files, [_expanded(override) for override in overrides])
    return _typed(tree)


def overridden(gconfig: GenerationHyperparameters, workflow: WorkflowConfig) -> GenerationHyperparameters:
    """Return gconfig with a workflow's overrides; DataError names a field that is unknown or has a wrong value."""
    fields = list(GenerationHyperparameters.__struct_fields__)
    for name in workflow.gconfig_overrides:
        if name not in fields:
            raise DataError(f"{name}: unknown key{suggestion(name, fields)}; known here: {', '.join(fields)}")
    values = {**msgspec.to_builtins(gconfig), **workflow.gconfig_overrides}
    try:
        return msgspec.convert(values, GenerationHyperparameters, strict=True).check()
    except msgspec.ValidationError as error:
        raise DataError(str(error)) from error


def eval_workflow(config: RunConfig, dataset: EvalDatasetConfig) -> WorkflowConfig:
    """The workflow that scores an evaluation dataset."""
    return config.dataflow.eval_workflows[dataset.eval_workflow]


def _expanded(override: str) -> str:
    key, equals, value = override.partition("=")
    return f"{SHORTHANDS[key]}{equals}{value}" if equals and key in SHORTHANDS else override


def _typed(tree: Tree) -> tuple[RunConfig, Tree]:
    model_ids = _model_ids(tree)
    own = {model_id: f"{TRAINER}{model_id}" for model_id in model_ids if f"{TRAINER}{model_id}" in tree.values}
    shared = not model_ids or len(own) < len(model_ids)
    names = [*own.values(), TRAINER_BASE] if shared else [*own.values()]
    fields: dict[str, Any] = dict.fromkeys(names, (TrainerConfig, ...))
    tree = _with_trainers(tree, model_ids, shared)
    sections = build(create_model("RunConfig", __base__=RunSections, **fields), tree)
    config = RunConfig(
        experiment=sections.experiment,
        base_model=sections.base_model,
        raas=sections.raas,
        rollout=sections.rollout,
        dataflow=sections.dataflow,
        trainers={model_id: getattr(sections, own.get(model_id, TRAINER_BASE)) for model_id in model_ids},
    )
    return config, tree


def _model_ids(tree: Tree) -> list[str]:
    """Names under raas.models; ConfigError for a trainer section without its model."""
    raas = tree.values.get("raas")
    models = raas.get("models") if isinstance(raas, dict) else None
    model_ids = [str(name) for name in models] if isinstance(models, dict) else []
    for model_id in model_ids:
        if not _MODEL_ID.fullmatch(model_id) or model_id == "base":
            where = tree.origin(f"raas.models.{model_id}")
            raise ConfigError(
                f"{where}: raas.models.{model_id}: a model is named by at most {MAX_ID} letters, digits, '_', '-'; "
                "not 'base'"
            )
    known = [TRAINER_BASE, *(f"{TRAINER}{model_id}" for model_id in model_ids)]
    for key in tree.values if model_ids else ():
        if key.startswith(TRAINER) and key not in known:
            near = suggestion(key, known)
            raise ConfigError(
                f"{tree.origin(key)}: {key}: raas.models has no such model{near}; known: {', '.join(known)}"
            )
    return model_ids


def _with_trainers(tree: Tree, model_ids: list[str], shared: bool) -> Tree:
    """Put trainer_base under each model's own trainer section; its keys keep the place where they were set."""
    values, origins = dict(tree.values), dict(tree.origins)
    base = values.get(TRAINER_BASE, {})
    for section in (f"{TRAINER}{model_id}" for model_id in model_ids):
        own = values.get(section)
        if isinstance(own, dict) and isinstance(base, dict):
            values[section] = _deep_merged(base, own)
        for path, where in tree.origins.items():
            if path == TRAINER_BASE or path.startswith(f"{TRAINER_BASE}."):
                origins.setdefault(section + path.removeprefix(TRAINER_BASE), where)
    if not shared:
        values.pop(TRAINER_BASE, None)
    return Tree(values, origins)


def _deep_merged(base: Mapping[str, Any], addition: Mapping[str, Any]) -> dict[str, Any]:
    out = copy.deepcopy(dict(base))
    for key, value in addition.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = _deep_merged(out[key], value) if both else copy.deepcopy(value)
    return out
