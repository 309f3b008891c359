"""A trainer that is killed and started again goes on from its newest state."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from astraflow.core.config import ExperimentConfig
from astraflow.core.model import new_model
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.errors import ConfigError
from astraflow.train_worker.config import EvaluatorConfig, OptimizerConfig, RecoverConfig, TrainerConfig
from astraflow.train_worker.config import TrainWorkerSettings as Settings
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient
from astraflow.train_worker.trainer.ppo_trainer import AstraFlowPPOTrainer
from astraflow.train_worker.trainer.recovery import NoRecovery, TrainerRecovery, recovery_of


class KilledError(Exception):
    """Stands for a SIGKILL."""


class Process:
    """One life of a trainer of six steps that keeps its state every two."""

    def __init__(self, scripted: SimpleNamespace, dataflow: Any, root: Path, mode: str = "auto") -> None:
        self.settings = Settings(
            experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(root)),
            model_id="model0",
            model_path="unused",
            n_samples=2,
            max_new_tokens=3,
            trainer=TrainerConfig(
                total_train_steps=6,
                train_batch_size=4,
                evaluator=EvaluatorConfig(eval_at_start=True),
                recover=RecoverConfig(mode=mode, freq_steps=2),
            ),
            dataflow_url="http://dataflow",
            run_dir=str(root),
        )
        self.engine = NativeEngine(new_model("tiny-0.2m", seed=1), OptimizerConfig(lr=1e-3), 6)
        self.publisher, self.metrics = scripted.Publisher(), scripted.Metrics()
        self._dataflow = dataflow

    def live(self) -> AstraFlowPPOTrainer:
        with AstraFlowClient("http://dataflow", "token", "model0", transport=self._dataflow.transport) as client:
            recovery = recovery_of(self.settings, self.engine, client)
            trainer = AstraFlowPPOTrainer(
                self.settings, self.engine, client, self.publisher, self.metrics, tiny_tokenizer(), None, recovery
            )
            trainer.train()
            return trainer


def batches(scripted: SimpleNamespace, killed_at: set[int]) -> Any:
    """A batch for every version; the first time that one of these is asked for, the trainer is killed."""

    def make(version: int) -> Any:
        if version in killed_at:
            killed_at.discard(version)
            raise KilledError
        rows = [
            scripted.trajectory(10 * version + g, s, [1, 2], [3 + s, 4], float(s)) for g in range(2) for s in range(2)
        ]
        return scripted.batch_of(rows)

    return make


def test_a_killed_trainer_goes_on_from_its_newest_state(scripted: SimpleNamespace, tmp_path: Path) -> None:
    dataflow = scripted.Dataflow(batches(scripted, {3}))
    with pytest.raises(Exception, match="KilledError"):
        Process(scripted, dataflow, tmp_path).live()
    assert [request.step for request in dataflow.kept] == [2]
    second = Process(scripted, dataflow, tmp_path)
    second.live()
    recovered = dataflow.ready[-1]
    assert (recovered.recovered_step, recovered.recovered_version, recovered.manifest) == (2, 2, None)
    # the restored weights are published under the next number, with the step that made them, and not evaluated
    again = [(n.version, n.step, n.run_eval) for n in dataflow.notified[4:]]
    assert again == [(4, 2, False), (5, 3, False), (6, 4, False), (7, 5, False), (8, 6, True)]
    assert [request.step for request in dataflow.kept] == [2, 2, 4]  # the older of the two states
    assert sorted(second.metrics.records) == [3, 4, 5, 6]
    assert second.metrics.records[3]["staleness/max"] == 2  # tokens of version 0, and numbers jumped by one


def test_a_trainer_whose_newest_state_is_damaged_goes_on_from_the_one_before(
    scripted: SimpleNamespace, tmp_path: Path
) -> None:
    dataflow = scripted.Dataflow(batches(scripted, {5}))
    with pytest.raises(Exception, match="KilledError"):
        Process(scripted, dataflow, tmp_path).live()
    file = tmp_path / "recover" / "model0" / "step_000004" / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    second = Process(scripted, dataflow, tmp_path)
    second.live()
    assert dataflow.ready[-1].recovered_step == 2 == dataflow.kept[-3].step
    assert sorted(second.metrics.records) == [3, 4, 5, 6]


@pytest.mark.parametrize(("step", "highest", "found"), [(2, 2, 2), (3, 3, 2), (4, 3, 2), (4, 4, 4)])
def test_a_trainer_goes_on_from_the_newest_state_that_the_ledger_knows(
    scripted: SimpleNamespace, tmp_path: Path, step: int, highest: int, found: int
) -> None:
    class LosesPower(scripted.Dataflow):  # type: ignore[name-defined,misc]
        """Its ledger lost its last commits, and tells what it still knows."""

        def _status(self) -> dict[str, Any]:
            known = {"trainer_ready": bool(self.ready), "version": highest, "step": step, "highest": highest}
            return {"status": "ready", "agents": {"model0": known}}

    dataflow = LosesPower(batches(scripted, {5}))
    with pytest.raises(Exception, match="KilledError"):
        Process(scripted, dataflow, tmp_path).live()
    states = tmp_path / "recover" / "model0"
    assert {path.name for path in states.iterdir()} == {"step_000002", "step_000004"}
    Process(scripted, dataflow, tmp_path).live()
    assert (dataflow.ready[-1].recovered_step, dataflow.ready[-1].recovered_version) == (found, found)
    assert (states / "ahead_step_000004").exists() == (found == 2)


def test_a_trainer_whose_states_are_all_newer_than_the_ledger_says_so(
    scripted: SimpleNamespace, tmp_path: Path
) -> None:
    class Older(scripted.Dataflow):  # type: ignore[name-defined,misc]
        def _status(self) -> dict[str, Any]:
            known = {"trainer_ready": bool(self.ready), "version": 1, "step": 1, "highest": 1}
            return {"status": "ready", "agents": {"model0": known}}

    dataflow = Older(batches(scripted, {5}))
    with pytest.raises(Exception, match="KilledError"):
        Process(scripted, dataflow, tmp_path).live()
    before = sorted(path.name for path in (tmp_path / "recover" / "model0").iterdir())
    with pytest.raises(ConfigError, match=r"step_000002 is of step 2, version 2, .* up to step 1, version 1: restore"):
        Process(scripted, dataflow, tmp_path).live()
    assert len(dataflow.ready) == 1
    assert sorted(path.name for path in (tmp_path / "recover" / "model0").iterdir()) == before  # nothing is moved


def test_a_trainer_that_died_before_its_first_state_is_at_step_0_again(
    scripted: SimpleNamespace, tmp_path: Path
) -> None:
    dataflow = scripted.Dataflow(batches(scripted, {1}))
    with pytest.raises(Exception, match="KilledError"):
        Process(scripted, dataflow, tmp_path).live()
    second = Process(scripted, dataflow, tmp_path)
    second.live()
    assert (dataflow.ready[-1].recovered_step, dataflow.ready[-1].recovered_version) == (0, 0)
    assert [(n.version, n.step, n.run_eval) for n in dataflow.notified[2:4]] == [(2, 0, True), (3, 1, False)]
    assert sorted(second.metrics.records) == [0, 1, 2, 3, 4, 5, 6]


def test_a_trainer_that_had_done_all_has_nothing_left(scripted: SimpleNamespace, tmp_path: Path) -> None:
    dataflow = scripted.Dataflow(batches(scripted, set()))
    first = Process(scripted, dataflow, tmp_path)
    first.live()
    second = Process(scripted, dataflow, tmp_path)
    second.live()
    assert len(dataflow.served) == 6
    pairs = zip(first.engine.named_weights(), second.engine.named_weights(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def test_without_recovery_nothing_is_kept(scripted: SimpleNamespace, tmp_path: Path) -> None:
    dataflow = scripted.Dataflow(batches(scripted, set()))
    trainer = Process(scripted, dataflow, tmp_path, "disabled").live()
    assert isinstance(trainer.recovery, NoRecovery)
    assert dataflow.kept == []
    assert not (tmp_path / "recover").exists()


def test_an_engine_that_keeps_no_state_is_refused(tmp_path: Path) -> None:
    class Engine:
        pass

    with pytest.raises(ConfigError, match="Engine cannot keep its state"):
        TrainerRecovery(tmp_path, RecoverConfig(mode="auto"), Engine(), None)  # type: ignore[arg-type]
