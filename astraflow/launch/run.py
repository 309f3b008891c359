"""One run on this machine, from a checked configuration to summary.json and report.html."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from astraflow.core.config import to_yaml
from astraflow.core.observability.lines import write_whole
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.sinks.jsonl import JsonlReader
from astraflow.core.protocol import DataflowClient
from astraflow.errors import AstraFlowError, DataError, boundary
from astraflow.launch.complaints import Complaints
from astraflow.launch.config import RunConfig
from astraflow.launch.local import FINISH_WITHIN, LocalProcesses, interruptible
from astraflow.launch.model_source import ensure_model, template_findings
from astraflow.launch.progress import Progress
from astraflow.launch.recovery import Restarts, open_run_directory, recover_config
from astraflow.launch.scaling import Actuator
from astraflow.launch.specs import RAAS, ModelPaths, dataflow_spec, raas_spec, raas_specs, trainer_specs
from astraflow.launch.summary import Summary, summarise, write_summary
from astraflow.launch.view import StatusThread, View, Watcher


def run(config: RunConfig, view: View) -> Summary:
    """Make or fetch the model where needed, start everything, wait for the train workers, stop in order.

    PeerError where a process fails, with its name and last log lines; Interrupted on an order to stop. Either way no
    process is left when this returns.
    """
    started = time.monotonic()
    view.say(f"{config.experiment.experiment_name}/{config.experiment.trial_name}, seed {config.experiment.seed}")
    run_dir = open_run_directory(Path(config.experiment.fileroot), config, view.say)
    try:
        write_whole(run_dir.config, to_yaml(config.values()).encode())
        with interruptible():
            paths = ModelPaths.of(config, ensure_model(config, run_dir, view.say))
            findings = template_findings(paths.tokenizer)
            if findings:
                broken = f"chat template, prefix law broken {len(findings)} times: {'; '.join(findings)}"
                view.say(f"{broken} (matters only where episodes have several turns: they branch there)")
            _train(config, run_dir, paths, view)
        wall_s = time.monotonic() - started
        for model_id in config.model_ids[1:]:
            records = JsonlReader(run_dir.metrics_of(model_id)).read()
            write_summary(summarise(records, config.staleness_bound, wall_s), run_dir.summary_of(model_id))
        summary = summarise(JsonlReader(run_dir.metrics).read(), config.staleness_bound, wall_s)
        write_summary(summary, run_dir.summary)
        return summary
    finally:
        draw_report(run_dir, view.say)
        run_dir.release()


def draw_report(run_dir: RunDirectory, say: Callable[[str], None]) -> None:
    """Draw what the run left, however it ended; a report that cannot be drawn is said and spoils nothing."""
    try:
        with boundary(DataError, "it cannot be drawn"):
            dashboard = importlib.import_module("astraflow.dashboard.report")  # takes a second to load: only now
            say(f"report: {dashboard.write_report([run_dir.root])}")
    except AstraFlowError as error:
        say(f"no report: {error}")


def _train(config: RunConfig, run_dir: RunDirectory, paths: ModelPaths, view: View) -> None:
    restarts = Restarts.of(recover_config(config), view.say)
    with LocalProcesses(run_dir, restarts=restarts, say=view.say) as processes:
        processes.spawn([dataflow_spec(config, run_dir, paths)])
        url = processes.listening(["dataflow"])["dataflow"].url
        raas = raas_specs(config, run_dir, paths, url)
        trainers = trainer_specs(config, run_dir, paths, url)
        processes.spawn(raas)
        processes.spawn(trainers)
        processes.listening([spec.name for spec in raas])
        view.say(f"dataflow at {url}; {len(raas)} RaaS, {len(trainers)} train worker; run directory {run_dir.root}")
        status = StatusThread(url, run_dir.token())
        model_of = {spec.name: model_id for spec, model_id in zip(trainers, config.trainers, strict=True)}
        total = max(trainer.total_train_steps for trainer in config.trainers.values())
        progress = Progress(total, config.staleness_bound)
        complaints = Complaints(run_dir.log("dataflow"))
        watcher = Watcher(view, progress, JsonlReader(run_dir.metrics), status, complaints)
        actuator = None
        if config.raas.scaling is not None:
            one_more = partial(raas_spec, config, run_dir, paths, url)
            names = [spec.name for spec in raas]
            actuator = Actuator(config.raas.scaling, processes, names, one_more, status, view.say)

        def joined(kind: str) -> list[str]:
            rows = status.latest.get("raas_pool", {}).get("instances", ()) if kind == RAAS else ()
            return [row["uid"] for row in rows if row["health"] != "dead"]

        def tick() -> None:
            watcher.tick()
            if actuator is not None:
                actuator.tick()

        def gone(name: str) -> None:
            model_id = model_of.get(name)
            if model_id is not None:
                status.ask(lambda dataflow: _without(dataflow, model_id))

        try:
            processes.watch([spec.name for spec in trainers], tick, joined=joined, gone=gone)
            watcher.look()
        finally:
            status.close()
        processes.stop(FINISH_WITHIN)


async def _without(dataflow: DataflowClient, model_id: str) -> None:
    """The other policies need not wait until the dead one's trainer has been silent for long."""
    await dataflow.deregister_trainer(model_id)
