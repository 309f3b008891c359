"""How a trainer keeps what it needs to go on, and finds it again.

Order, learnt from what a kill between two lines leaves: a step is announced, its metrics and checkpoint are written,
then its state is kept, and only then does Dataflow hear that it may let go of what the steps up to the oldest
kept state trained. So Dataflow can always go back to the state that is found, also to the older one where the newest
is damaged, or is newer than a ledger that lost its last commits with the machine's power.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from astraflow.core.observability.run_directory import RunDirectory
from astraflow.errors import ConfigError
from astraflow.train_worker.checkpoint import TrainerProgress, load_state, oldest_step, save_state
from astraflow.train_worker.config import RecoverConfig, TrainWorkerSettings
from astraflow.train_worker.engine.base import Restorable, TrainEngine
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient

LOGGER = logging.getLogger("astraflow.trainer")


class Recovery(Protocol):
    """What a trainer asks at its start, and tells after each step."""

    def restore(self, status: Mapping[str, Any]) -> TrainerProgress | None:
        """Bring the engine back and return where it is; None for a fresh start. `status`: Dataflow's."""

    def keep(self, progress: TrainerProgress) -> None:
        """A step is done, announced and written down."""


class NoRecovery:
    """Always begins anew."""

    def restore(self, status: Mapping[str, Any]) -> TrainerProgress | None:
        return None

    def keep(self, progress: TrainerProgress) -> None:
        pass


class TrainerRecovery:
    """Keeps states in `root`, every so many steps."""

    def __init__(self, root: Path, config: RecoverConfig, engine: TrainEngine, client: AstraFlowClient) -> None:
        """ConfigError where the engine cannot be restored."""
        if not isinstance(engine, Restorable):
            raise ConfigError(f"recover.mode: {type(engine).__name__} cannot keep its state; set it to disabled")
        self._root = root
        self._config = config
        self._engine = engine
        self._client = client

    def restore(self, status: Mapping[str, Any]) -> TrainerProgress | None:
        """Restore the newest state that Dataflow's ledger knows; ConfigError where there are only newer ones.

        A model whose trainer Dataflow knows has begun before: without a state, it is at step 0 again.
        """
        known = status.get("agents", {}).get(self._client.model_id, {})
        found = load_state(self._root, lambda progress: _ahead(progress, known))
        if found is not None:
            state, progress = found
            self._engine.restore(state)
            LOGGER.warning("continues after step %d, which was version %d", progress.step, progress.version)
            return progress
        return TrainerProgress(0, 0, {0: 0}) if known.get("trainer_ready") else None

    def keep(self, progress: TrainerProgress) -> None:
        if progress.step % self._config.freq_steps == 0:
            save_state(self._root, self._engine.state(), progress)
            self._client.save_buffer(oldest_step(self._root))


def _ahead(progress: TrainerProgress, model: Mapping[str, Any]) -> str | None:
    """Say how a state is ahead of the ledger, if it is. `model`: its part of Dataflow's status.

    A Dataflow that has not heard of this trainer decides when the trainer is back: it may keep no ledger.
    """
    step, version = model.get("step", progress.step), model.get("highest", progress.version)
    if not model.get("trainer_ready") or (progress.step <= step and progress.version <= version):
        return None
    return (
        f"is of step {progress.step}, version {progress.version}, but the ledger goes only up to step {step}, version "
        f"{version}: restore the newer ledger or an earlier state, or begin in a new run directory"
    )


def recovery_of(settings: TrainWorkerSettings, engine: TrainEngine, client: AstraFlowClient) -> Recovery:
    """What the configuration asks for."""
    config = settings.trainer.recover
    if not config.enabled:
        return NoRecovery()
    return TrainerRecovery(RunDirectory(settings.run_dir).recover(settings.model_id), config, engine, client)
