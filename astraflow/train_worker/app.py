"""The train worker's process.

    python -m astraflow.train_worker.app --settings FILE

Exit codes: 0 all steps done · 1 a failure, named in the log's last line · 2 a wrong configuration · 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType

import torch

from astraflow.core.config import load_tree, read_settings
from astraflow.core.model import load_model, return_large_blocks
from astraflow.core.observability import lifeline, log
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.sinks.base import LoggedRun
from astraflow.core.observability.spans import SpanLog
from astraflow.core.observability.stats_logger import StatsLogger
from astraflow.core.text.tokenizer import load_tokenizer
from astraflow.core.weight_manager import WeightManager
from astraflow.core.weight_manager.version_log import VersionLog, published_log
from astraflow.errors import AstraFlowError, ConfigError
from astraflow.train_worker.config import TrainWorkerSettings
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient
from astraflow.train_worker.trainer.ppo_trainer import AstraFlowPPOTrainer
from astraflow.train_worker.trainer.recovery import recovery_of

LOGGER = logging.getLogger("astraflow.train_worker")

PATIENCE = 120.0
"""Seconds that a trainer waits for a Dataflow which is started again: as long as a start may take."""

DONE, FAILED, MISCONFIGURED, TERMINATED = 0, 1, 2, 143


class Terminated(BaseException):
    """SIGTERM or SIGINT arrived. Not an Exception: nothing between the signal and `main` may take it for a failure."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process and return its exit code."""
    parser = argparse.ArgumentParser(prog="astraflow.train_worker.app", description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=Path, required=True)
    log.configure()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _terminate)
    try:
        settings = read_settings(TrainWorkerSettings, parser.parse_args(arguments).settings)
        lifeline.watch_parent()
        run(settings)
    except Terminated:
        LOGGER.warning("stopped by a signal")
        return TERMINATED
    except AstraFlowError as error:
        LOGGER.error("%s: %s", error.kind, error)
        return MISCONFIGURED if isinstance(error, ConfigError) else FAILED
    return DONE


def run(settings: TrainWorkerSettings) -> None:
    """Build the parts, train, and take everything down whatever happens."""
    config = settings.trainer
    torch.set_num_threads(config.threads)
    torch.manual_seed(settings.experiment.seed)
    run_dir = RunDirectory(settings.run_dir)
    tokenizer = load_tokenizer(settings.experiment.tokenizer_path or settings.model_path)
    engine = build_engine(settings)
    with ExitStack() as stack:
        spans = stack.enter_context(closing(SpanLog(run_dir.spans, f"train_worker-{settings.model_id}")))
        metrics = stack.enter_context(closing(StatsLogger(_logged_run(settings, run_dir), config.stats_logger)))
        patience = PATIENCE if config.recover.enabled else 0.0
        client = stack.enter_context(
            AstraFlowClient(settings.dataflow_url, run_dir.token(), settings.model_id, patience=patience)
        )
        recovery = recovery_of(settings, engine, client)
        publisher = stack.enter_context(build_publisher(settings, run_dir.token()))
        AstraFlowPPOTrainer(settings, engine, client, publisher, metrics, tokenizer, spans, recovery).train()
    LOGGER.info("all %d steps are done", config.total_train_steps)


def build_engine(settings: TrainWorkerSettings) -> NativeEngine:
    """Load the model into the engine that the configuration names."""
    config = settings.trainer
    decoder, _ = load_model(settings.model_path, settings.experiment.dtype)
    return_large_blocks(decoder)
    return NativeEngine(
        decoder,
        config.actor.optimizer,
        config.total_train_steps * config.actor.ppo_n_minibatches,
        temperature=settings.temperature,
        max_tokens_per_mb=config.actor.mb_spec.max_tokens_per_mb,
        device=config.engine.device,
    )


def build_publisher(settings: TrainWorkerSettings, token: str) -> WeightManager:
    """Return the model's weight manager, not started."""
    experiment = settings.experiment
    return WeightManager(
        settings.model_id,
        token,
        transports=(experiment.weight_transfer_mode,),
        wire_dtype=experiment.wire_dtype,
        host=settings.host,
        port=settings.sender_port,
        strategy=experiment.weight_transfer_strategies,
        log=VersionLog(published_log(Path(settings.run_dir), settings.model_id)),
        folder=weights_folder(settings) if experiment.weight_transfer_mode == "disk" else None,
    )


def weights_folder(settings: TrainWorkerSettings) -> Path:
    """Where versions lie for RaaS that read them from the shared run directory."""
    return RunDirectory(settings.run_dir).root / "weights" / settings.model_id


def _logged_run(settings: TrainWorkerSettings, run_dir: RunDirectory) -> LoggedRun:
    experiment = settings.experiment
    return LoggedRun(
        experiment_name=experiment.experiment_name,
        trial_name=experiment.trial_name,
        model_id=settings.model_id,
        directory=run_dir.root,
        metrics_file=run_dir.metrics_of(settings.further).name,
        config=load_tree([run_dir.config]).values if run_dir.config.is_file() else {},
    )


def _terminate(number: int, frame: FrameType | None) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)  # stopping is not stopped by a second one
    raise Terminated


if __name__ == "__main__":
    sys.exit(main())
