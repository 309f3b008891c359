"""The trainer's loop against a scripted Dataflow, with a real engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from astraflow.core.config import ExperimentConfig
from astraflow.core.model import Decoder, load_model, new_model, packed_attention, packed_positions
from astraflow.core.observability.kept import TrainerLogprobs, kept_rows
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.errors import DeadlineError
from astraflow.train_worker.config import (
    ActorConfig,
    EvaluatorConfig,
    MicroBatchConfig,
    OptimizerConfig,
    SaverConfig,
    TrainerConfig,
    TrainWorkerSettings,
)
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient
from astraflow.train_worker.trainer.ppo_trainer import AstraFlowPPOTrainer

TEMPERATURE = 0.9


def next_logits(decoder: Decoder) -> Callable[[list[list[int]]], torch.Tensor]:
    @torch.no_grad()
    def logits(rows: list[list[int]]) -> torch.Tensor:
        cu_seqlens = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()])
        ids = torch.tensor([token for row in rows for token in row])
        hidden = decoder(ids, packed_positions(cu_seqlens), packed_attention(cu_seqlens))
        return decoder.logits(hidden[cu_seqlens[1:] - 1])

    return logits


def low_token(sampled: list[int]) -> float:
    """Reward: share of sampled tokens in the lower half of the vocabulary."""
    return sum(token < 50 for token in sampled) / len(sampled)


class Bench:
    """A trainer whose rollouts come from its own engine, at a version's lag of `stale`."""

    def __init__(self, scripted: SimpleNamespace, root: Path, steps: int, stale: int = 0, **options: Any) -> None:
        actor = options.pop("actor", ActorConfig(optimizer=OptimizerConfig(lr=2e-3)))
        self.decoder = new_model("tiny-0.2m", seed=2)
        self.behaviour = new_model("tiny-0.2m", seed=2)
        self.stale = stale
        self.settings = TrainWorkerSettings(
            experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(root)),
            model_id="model0",
            model_path="unused",
            n_samples=8,
            max_new_tokens=3,
            temperature=TEMPERATURE,
            trainer=TrainerConfig(total_train_steps=steps, train_batch_size=32, actor=actor, **options),
            dataflow_url="http://dataflow",
            run_dir=str(root),
        )
        self.engine = NativeEngine(
            self.decoder,
            actor.optimizer,
            steps * actor.ppo_n_minibatches,
            temperature=TEMPERATURE,
            max_tokens_per_mb=actor.mb_spec.max_tokens_per_mb,
        )
        self.dataflow = scripted.Dataflow(self.make_batch)
        self.publisher, self.metrics = scripted.Publisher(), scripted.Metrics()
        self._sample = scripted.sample_batch

    def make_batch(self, version: int) -> Any:
        made_by = max(version - self.stale, 0)
        self.behaviour.load_state_dict({**self.behaviour.state_dict(), **self.publisher.versions[made_by]})
        return self._sample(next_logits(self.behaviour), low_token, made_by, temperature=TEMPERATURE)

    def train(self) -> dict[int, dict[str, float]]:
        with AstraFlowClient("http://dataflow", "token", "model0", transport=self.dataflow.transport) as client:
            trainer = AstraFlowPPOTrainer(
                self.settings, self.engine, client, self.publisher, self.metrics, tiny_tokenizer()
            )
            trainer.train()
        records: dict[int, dict[str, float]] = self.metrics.records
        return records


@pytest.mark.parametrize(
    ("stale", "actor"),
    [
        (0, {"loss": "decoupled"}),
        (2, {"loss": "decoupled", "ppo_n_minibatches": 2, "behav_imp_weight_cap": 5.0}),
        (1, {"loss": "ppo", "loss_agg": "sequence", "entropy_coef": 0.001}),
        (1, {"loss": "m2po", "m2_threshold": 0.04, "mb_spec": MicroBatchConfig(max_tokens_per_mb=20)}),
    ],
)
def test_it_learns(scripted: SimpleNamespace, tmp_path: Path, stale: int, actor: dict[str, Any]) -> None:
    options = ActorConfig(optimizer=OptimizerConfig(lr=5e-3), **actor)
    records = Bench(scripted, tmp_path, 25, stale, actor=options).train()
    assert records[1]["reward/mean"] < 0.5
    assert sum(records[step]["reward/mean"] for step in (23, 24, 25)) / 3 > 0.8
    assert records[25]["staleness/max"] == stale


def test_the_order_of_a_run(scripted: SimpleNamespace, tmp_path: Path) -> None:
    bench = Bench(
        scripted,
        tmp_path,
        5,
        evaluator=EvaluatorConfig(eval_at_start=True, freq_steps=2),
        saver=SaverConfig(freq_steps=3),
    )
    records = bench.train()
    ready = bench.dataflow.ready
    assert [(r.train_batch_size, r.sender_endpoint, r.manifest.digest) for r in ready] == [
        (32, "127.0.0.1:1", "digest-0")
    ]
    assert bench.dataflow.served == [0, 1, 2, 3, 4]
    notified = [(n.version, n.step, n.run_eval, n.manifest.digest) for n in bench.dataflow.notified]
    assert notified == [
        (0, 0, True, "digest-0"),
        (1, 1, False, "digest-1"),
        (2, 2, True, "digest-2"),
        (3, 3, False, "digest-3"),
        (4, 4, True, "digest-4"),
        (5, 5, True, "digest-5"),
    ]
    assert sorted(records) == [0, 1, 2, 3, 4, 5]
    assert {step: record.get("eval/held_out/avg@k") for step, record in records.items()} == {
        0: 0, 1: None, 2: 2, 3: None, 4: 4, 5: 5,
    }  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_000003", "step_000005"]
    saved, _ = load_model(tmp_path / "checkpoints" / "step_000005")
    assert all(torch.equal(tensor, bench.publisher.versions[5][name]) for name, tensor in saved.named_parameters())
    announced = RunDirectory(tmp_path).endpoint("sender-model0")
    assert announced is not None
    assert announced.url == "http://127.0.0.1:1"


def test_an_evaluation_beside_training_blocks_none_of_it(scripted: SimpleNamespace, tmp_path: Path) -> None:
    bench = Bench(scripted, tmp_path, 6, evaluator=EvaluatorConfig(freq_steps=1))
    bench.settings = bench.settings.model_copy(update={"eval_concurrent": True})
    may_end = threading.Event()

    def evaluates(version: int) -> None:
        if version == 1:
            assert may_end.wait(20)

    def make_batch(version: int) -> Any:
        if version == 4:  # the first round has not ended, and four steps were trained
            may_end.set()
        return own(version)

    own, bench.dataflow.evaluates, bench.dataflow.make_batch = bench.make_batch, evaluates, make_batch
    records = bench.train()
    asked = [n.version for n in bench.dataflow.notified if n.run_eval]
    assert asked[0] == 1
    assert asked[-1] == 6
    assert not {2, 3, 4} & set(asked)  # one round at a time
    scored = {step: record["eval/version"] for step, record in records.items() if "eval/version" in record}
    assert min(scored) >= 5
    assert scored[6] == 6  # the last version is waited for


def test_a_failed_evaluation_beside_training_does_not_end_the_run(scripted: SimpleNamespace, tmp_path: Path) -> None:
    bench = Bench(scripted, tmp_path, 3, evaluator=EvaluatorConfig(freq_steps=1))
    bench.settings = bench.settings.model_copy(update={"eval_concurrent": True})

    def evaluates(version: int) -> None:
        if version != 3:
            raise DeadlineError("the round took too long")

    bench.dataflow.evaluates = evaluates
    records = bench.train()
    assert records[3]["eval/held_out/avg@k"] == 3


def test_a_steps_record(scripted: SimpleNamespace, tmp_path: Path) -> None:
    record = Bench(scripted, tmp_path, 1).train()[1]
    assert record["buffer/ready"] == 3
    assert record["version"] == 1
    assert record["batch/tokens"] == 32 * 5
    assert record["batch/sampled_tokens"] == 32 * 3
    assert record["batch/groups"] == 4
    assert record["train/tokens_per_s"] == pytest.approx(160 / record["timeperf/train"])
    assert {"timeperf/wait_batch", "timeperf/publish", "timeperf/eval", "ppo/loss", "ppo/lr", "ppo/entropy"} <= set(
        record
    )
    assert record["ppo/grad_norm"] > 0
    assert record["ratio/current_version_max_dev"] < 1e-3
    assert record["ratio/mean"] == pytest.approx(1, abs=1e-4)
    assert record["ppo/clip_fraction"] == 0


def test_stale_trajectories_are_not_taken_for_current(scripted: SimpleNamespace, tmp_path: Path) -> None:
    record = Bench(scripted, tmp_path, 2, stale=1).train()[2]
    assert record["staleness/max"] == 1
    assert "ratio/current_version_max_dev" not in record
    assert record["ratio/max"] > 1.001


def test_its_logprobs_of_the_kept_trajectories_stand_beside_the_engines(
    scripted: SimpleNamespace, tmp_path: Path
) -> None:
    bench = Bench(scripted, tmp_path, 1)
    batches: list[Any] = []

    def make_batch(version: int) -> Any:
        batches.append(bench.make_batch(version))
        return batches[-1]

    bench.dataflow.make_batch = make_batch
    bench.train()
    lines = RunDirectory(tmp_path).trainer_logprobs(1, "model0").read_bytes().splitlines()
    kept = [msgspec.json.decode(line, type=TrainerLogprobs) for line in lines]
    batch = batches[0]
    rows = kept_rows(batch.group_id.tolist())
    assert [k.sample_id for k in kept] == batch.sample_id[rows].tolist()
    for row, found in zip(rows, kept, strict=True):
        engines = batch.logprobs[batch.offsets[row] : batch.offsets[row + 1]]
        assert found.logprobs == pytest.approx(engines.tolist(), abs=1e-3)
        assert any(found.logprobs)


def test_a_version_that_nothing_could_be_learnt_for_says_so(scripted: SimpleNamespace, tmp_path: Path) -> None:
    """No row can be trained on: the run goes on, and equal bytes under a new number are no alarm."""
    bench = Bench(scripted, tmp_path, 2)

    def of_another_vocabulary(version: int) -> Any:
        batch = bench.make_batch(version)
        return msgspec.structs.replace(batch, input_ids=batch.input_ids + 10**6)

    bench.dataflow.make_batch = of_another_vocabulary
    meant: dict[int, bool] = {}
    offload = bench.publisher.offload

    def note(params: Any, version: int, *, restored: bool = False, **options: Any) -> Any:
        meant[version] = restored
        return offload(params, version, restored=restored, **options)

    bench.publisher.offload = note
    records = bench.train()
    assert [records[step]["batch/unfit_rows"] for step in (1, 2)] == [32, 32]
    assert meant == {0: False, 1: True, 2: True}
