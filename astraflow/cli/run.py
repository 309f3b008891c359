"""`astraflow run`."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Sequence

import msgspec
import typer

from astraflow.cli.inputs import split
from astraflow.core.config import to_yaml
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.launch.check import load_config
from astraflow.launch.config import RunConfig
from astraflow.launch.local import Interrupted
from astraflow.launch.model_source import PACKAGED, conversion_spec, planned_model
from astraflow.launch.specs import ModelPaths, dataflow_spec, raas_specs, sft_spec, trainer_specs
from astraflow.launch.summary import Summary


def run(inputs: Sequence[str], dry_run: bool) -> None:
    """Check everything, then start; Ctrl-C ends with exit code 130 after an ordered stop."""
    config = load_config(*split(inputs))
    if dry_run:
        typer.echo(described(config))
        return
    # the servers' machinery and rich load only now: a refused configuration has not waited for them
    view_module = importlib.import_module("astraflow.launch.view")
    launcher = importlib.import_module("astraflow.launch.run")
    view = view_module.terminal_view()
    try:
        summary = launcher.run(config, view)
    except Interrupted as order:
        view.close()
        typer.echo(f"astraflow: stopped by {order}; everything has ended", err=True)
        raise typer.Exit(order.exit_code) from None
    finally:
        view.close()
    typer.echo(outcome(config, summary))


def outcome(config: RunConfig, summary: Summary) -> str:
    """The last lines of a run that ended well."""
    lines = [f"{name}: {_shown(value)}" for name, value in msgspec.structs.asdict(summary).items()]
    return "\n".join([*lines, f"summary: {RunDirectory(config.experiment.fileroot, create=False).summary}"])


def described(config: RunConfig) -> str:
    """The processes that a run would start, and its resolved configuration, as one YAML document."""
    run_dir = RunDirectory(config.experiment.fileroot, create=False)
    model = planned_model(config)
    paths = ModelPaths.of(config, model)
    url = f"http://{config.dataflow.host}:{config.dataflow.port or '<announced>'}"
    specs = [dataflow_spec(config, run_dir, paths), *raas_specs(config, run_dir, paths, url)]
    specs += trainer_specs(config, run_dir, paths, url)
    if config.base_model is not None and not model.is_dir():
        specs.insert(0, sft_spec(config, run_dir, model))
    elif config.experiment.model_path in PACKAGED and not model.is_dir():
        specs.insert(0, conversion_spec(config.experiment.model_path, run_dir, model))
    processes = {
        spec.name: {"command": shlex.join(spec.argv), "env": spec.env, "log": str(spec.log_path)} for spec in specs
    }
    return to_yaml({"processes": processes, "config": config.values()})


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items()) or "none"
    if isinstance(value, tuple):
        return " to ".join(map(_shown, value))
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
