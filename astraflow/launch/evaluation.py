"""Scores a checkpoint without training: Dataflow and RaaS as in a run, and a publisher in the train worker's place."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

import msgspec

from astraflow.core.config import ExperimentConfig, Section, to_yaml
from astraflow.core.observability.lines import write_whole
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.protocol.messages import EvalResults
from astraflow.errors import ConfigError
from astraflow.launch.config import RunConfig
from astraflow.launch.local import Interrupted, LocalProcesses, interruptible
from astraflow.launch.model_source import ensure_model
from astraflow.launch.specs import ModelPaths, ProcessSpec, dataflow_spec, raas_specs
from astraflow.launch.view import View


class PublisherSettings(Section):
    """Everything the publisher process is given."""

    experiment: ExperimentConfig
    model_id: str
    model_path: str
    """The checkpoint, a Hugging Face directory."""
    train_batch_size: int
    """What is registered with Dataflow; nothing is trained."""
    timeout_s: float
    """Longest wait for the evaluation."""
    dataflow_url: str
    run_dir: str
    output: str
    """Where the results are written, as JSON."""


def evaluate(config: RunConfig, view: View) -> EvalResults:
    """Score the model that `config` starts from on its evaluation datasets.

    The run directory is a temporary one; it is kept where something fails, since the error names its logs. Interrupted
    on an order to stop.
    """
    if not config.dataflow.eval_datasets:
        raise ConfigError("dataflow.eval_datasets is empty: there is nothing to score the checkpoint on")
    if len(config.model_ids) != 1:
        raise ConfigError(f"a checkpoint is of one model, the configuration has {', '.join(config.model_ids)}")
    with interruptible():
        root = Path(tempfile.mkdtemp(prefix="astraflow-eval-"))
        try:
            results = _evaluate(config, root, view)
        except Interrupted:
            shutil.rmtree(root)
            raise
        shutil.rmtree(root)
    return results


def _evaluate(config: RunConfig, root: Path, view: View) -> EvalResults:
    run_dir = RunDirectory(root)
    config = dataclasses.replace(config, experiment=config.experiment.model_copy(update={"fileroot": str(root)}))
    write_whole(run_dir.config, to_yaml(config.values()).encode())
    run_dir.token()
    output = root / "eval.json"
    with LocalProcesses(run_dir) as processes:
        paths = ModelPaths.of(config, ensure_model(config, run_dir, view.say))
        processes.spawn([dataflow_spec(config, run_dir, paths)])
        url = processes.listening(["dataflow"])["dataflow"].url
        processes.spawn(raas_specs(config, run_dir, paths, url))
        publisher = publisher_spec(config, run_dir, paths, url, output)
        processes.spawn([publisher])
        view.say(f"scoring {paths.model} on {', '.join(config.dataflow.eval_datasets)}")
        processes.watch([publisher.name])
    return msgspec.json.decode(output.read_bytes(), type=EvalResults)


def publisher_spec(
    config: RunConfig, run_dir: RunDirectory, paths: ModelPaths, dataflow_url: str, output: Path
) -> ProcessSpec:
    """The process that publishes the checkpoint as version 0 and asks for its evaluation."""
    model_id = config.model_ids[0]
    settings = PublisherSettings(
        experiment=config.experiment,
        model_id=model_id,
        model_path=paths.model,
        train_batch_size=config.trainers[model_id].train_batch_size,
        timeout_s=config.dataflow.eval.timeout_s,
        dataflow_url=dataflow_url,
        run_dir=str(run_dir.root),
        output=str(output),
    )
    name = "publisher"
    return ProcessSpec(name, "astraflow.launch.publisher", settings, run_dir.settings(name), run_dir.log(name))
