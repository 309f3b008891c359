"""A configuration becomes process specs: what to start, with which settings, environment and log. Pure, so testable.

Start order: dataflow first; when it listens, every RaaS and train worker at once, given its URL.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.dataflow.config import DataflowSettings
from astraflow.launch.config import RunConfig
from astraflow.raas.config import RaaSSettings
from astraflow.train_worker.config import SFTSettings, TrainWorkerSettings

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Read by the numeric libraries when they load; a library left to itself takes every core."""

RAAS = "RaaS"
"""Kind of the processes that serve rollouts."""

NOTIFY_MARGIN_S = 60.0
"""What a train worker waits beyond Dataflow's own deadlines."""


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a run."""

    name: str
    """Also the name of its settings file, log and announcement."""
    module: str
    """Started as `python -m <module> --settings <file>`."""
    settings: BaseModel
    settings_path: Path
    log_path: Path
    threads: int = 1
    kind: str = ""
    """Processes of one kind stand in for each other: one may end while another lives. Empty: its end is the run's."""

    @property
    def argv(self) -> tuple[str, ...]:
        return (sys.executable, "-m", self.module, "--settings", str(self.settings_path))

    @property
    def env(self) -> dict[str, str]:
        """What is added to the launcher's environment."""
        return {**dict.fromkeys(THREAD_VARIABLES, str(self.threads)), "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class ModelPaths:
    """Where the run's model and tokenizer are."""

    model: str
    tokenizer: str

    @classmethod
    def of(cls, config: RunConfig, model: Path) -> ModelPaths:
        """`model` is the directory that the run starts from (launch.model_source)."""
        tokenizer = config.experiment.tokenizer_path
        return cls(str(model), str(Path(tokenizer).expanduser().absolute()) if tokenizer else str(model))


def sft_spec(config: RunConfig, run_dir: RunDirectory, output_dir: Path) -> ProcessSpec:
    """The process that makes the base model."""
    assert config.base_model is not None, "only a run with a base_model section makes one"
    settings = SFTSettings(sft=config.base_model, output_dir=str(output_dir))
    return _spec("base_model", "astraflow.train_worker.trainer.sft", settings, run_dir, config.base_model.threads)


def dataflow_spec(config: RunConfig, run_dir: RunDirectory, paths: ModelPaths) -> ProcessSpec:
    settings = DataflowSettings(
        experiment=config.experiment,
        dataflow=config.dataflow,
        gconfigs=config.gconfigs,
        tokenizer_path=paths.tokenizer,
        run_dir=str(run_dir.root),
    )
    return _spec("dataflow", "astraflow.dataflow.app", settings, run_dir)


def raas_specs(config: RunConfig, run_dir: RunDirectory, paths: ModelPaths, dataflow_url: str) -> list[ProcessSpec]:
    """One process per RaaS instance."""
    names = map(launched, range(config.raas.instances))
    return [raas_spec(config, run_dir, paths, dataflow_url, name) for name in names]


def launched(number: int) -> str:
    """Name of a RaaS that the launcher starts."""
    return f"raas-{number}"


def raas_spec(config: RunConfig, run_dir: RunDirectory, paths: ModelPaths, dataflow_url: str, name: str) -> ProcessSpec:
    """The RaaS of a name. The others do its work when it ends."""
    settings = RaaSSettings(
        experiment=config.experiment,
        raas=config.raas,
        rollout=config.rollout,
        model_paths=dict.fromkeys(config.model_ids, paths.model),
        tokenizer_path=paths.tokenizer,
        dataflow_urls=[dataflow_url],
        uid=name,
        run_dir=str(run_dir.root),
    )
    return _spec(settings.uid, "astraflow.raas.app", settings, run_dir, config.raas.threads, RAAS)


def trainer_specs(config: RunConfig, run_dir: RunDirectory, paths: ModelPaths, dataflow_url: str) -> list[ProcessSpec]:
    """One train worker per model."""
    specs: list[ProcessSpec] = []
    for model_id, trainer in config.trainers.items():
        gconfig = config.training_gconfig(model_id)
        settings = TrainWorkerSettings(
            experiment=config.experiment,
            model_id=model_id,
            model_path=paths.model,
            n_samples=gconfig.n_samples,
            max_new_tokens=gconfig.max_new_tokens,
            temperature=gconfig.temperature,
            trainer=trainer,
            eval_concurrent=config.dataflow.eval.mode == "concurrent",
            notify_timeout_s=config.dataflow.eval.timeout_s + config.dataflow.barrier_timeout_s + NOTIFY_MARGIN_S,
            dataflow_url=dataflow_url,
            further=model_id if specs else None,
            run_dir=str(run_dir.root),
        )
        name = f"train_worker-{model_id}"
        kind = "train worker" if config.dataflow.policy_death == "continue" else ""
        specs.append(_spec(name, "astraflow.train_worker.app", settings, run_dir, trainer.threads, kind))
    return specs


def _spec(
    name: str, module: str, settings: BaseModel, run_dir: RunDirectory, threads: int = 1, kind: str = ""
) -> ProcessSpec:
    return ProcessSpec(name, module, settings, run_dir.settings(name), run_dir.log(name), threads, kind)
