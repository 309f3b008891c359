"""The whole loop in one process with the real RaaS service: Dataflow, workflow, scripted engine, rewards, a trainer.

The engine answers one token per turn of the event loop, so weight updates fall into the middle of generations.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from astraflow.core.config import ExperimentConfig
from astraflow.core.data import GenerationHyperparameters, Manifest, ModelRequest
from astraflow.core.protocol import messages as m
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.dataflow.config import DataflowSettings
from astraflow.dataflow.scripted import Rehearsal, example_rows
from astraflow.raas.app import make_service, raas_app
from astraflow.raas.config import RaaSConfig, RaaSModelConfig, RaaSSettings, RolloutConfig
from astraflow.raas.engines.scripted import ScriptedEngine
from astraflow.raas.service import RaaSService

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_ids[0]
ETA, B, N = 2, 3, 4


class Payload:
    """Weights that always fit: the scripted engine has none."""

    mode = "full"
    bytes = 0

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.timing: dict[str, float] = {}

    def apply(self, weights: Any) -> None: ...

    def rollback(self) -> None: ...

    def release(self) -> None: ...


class Source:
    async def pull(self, endpoint: str, manifest: Manifest) -> Payload:
        return Payload(manifest)

    async def close(self) -> None: ...


@dataclass
class ServicePeer:
    """A real RaaS service as a peer of the rehearsal."""

    service: RaaSService
    app: Any
    url: str

    def registration(self, **capabilities: Any) -> m.RegisterRaaSRequest:
        given = {"max_concurrency": self.service.max_concurrent, "models": ["model0"], **capabilities}
        return m.RegisterRaaSRequest(uid=self.service.engine_id, raas_url=self.url, capabilities=given)


@asynccontextmanager
async def raas(path: Path, uid: str, seed: int) -> AsyncIterator[ServicePeer]:
    chance = random.Random(seed)

    def script(request: ModelRequest) -> list[int]:
        """A right or a wrong answer after some dots: generations differ in length."""
        asked = TOKENIZER.decode(request.input_ids.tolist())
        number = int("".join(c for c in asked.partition("+")[0] if c.isdigit())) + 1
        right = request.gconfig.greedy or chance.random() < 0.5
        return [*TOKENIZER.encode("." * chance.randint(0, 12) + str(number if right else number + 1)), END]

    settings = RaaSSettings(
        experiment=ExperimentConfig(experiment_name="e", trial_name="t", fileroot=str(path)),
        raas=RaaSConfig(
            models={
                "model0": RaaSModelConfig(
                    backend="scripted", gconfig=GenerationHyperparameters(n_samples=N, max_new_tokens=32)
                )
            }
        ),
        rollout=RolloutConfig(max_concurrent_rollouts=4, reward_workers=0),
        model_paths={"model0": str(path)},
        tokenizer_path=str(path / "tokenizer"),
        dataflow_urls=[],
        uid=uid,
        run_dir=str(path),
    )
    engine = ScriptedEngine("model0", script, eos_token_ids=[END], version=-1)
    service = make_service(settings, [engine], Rehearsal.TOKEN, Source)
    try:
        yield ServicePeer(service, raas_app(service, Rehearsal.TOKEN), f"http://{uid}")
        service.table.validate()
    finally:
        await service.close()


def settings(path: Path, reward_fn: str) -> DataflowSettings:
    workflow = {"workflow_cls": "rlvr", "reward_fn": reward_fn}
    return DataflowSettings.model_validate(
        {
            "experiment": {"experiment_name": "t", "trial_name": "t", "fileroot": str(path)},
            "dataflow": {
                "rollout_dataset": {"dataset_fn": "a.b:c"},
                "buffer": {"max_staleness": ETA},
                "workflow_spec": workflow,
                "eval_workflows": {"sums": {**workflow, "gconfig_overrides": {"n_samples": 2}}},
                "eval_datasets": {"held_out": {"dataset_fn": "a.b:c", "eval_workflow": "sums"}},
            },
            "gconfigs": {"model0": {"n_samples": N, "max_new_tokens": 32}},
            "tokenizer_path": str(path / "tokenizer"),
            "run_dir": str(path),
        }
    )


def test_twenty_steps_with_real_rollouts(tmp_path: Path, monkeypatch: Any) -> None:
    TOKENIZER.save(tmp_path / "tokenizer")
    (tmp_path / "loop_reward.py").write_text(
        "def reward(prompt, completions, prompt_ids, completion_ids, answer, **row):\n"
        "    return float(completions.strip('.') == answer)\n",
        "utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    reward_fn = "loop_reward:reward"

    async def body() -> None:
        rehearsal = Rehearsal(settings(tmp_path, reward_fn), eval_rows={"held_out": example_rows(6)})
        async with (
            raas(tmp_path, "raas-0", 1) as first,
            raas(tmp_path, "raas-1", 2) as second,
            rehearsal.running(),
        ):
            await rehearsal.join(first)
            await rehearsal.join(second)
            trainer = rehearsal.trainer(batch_size=B * N)
            began = await trainer.begin(run_eval=True)
            assert began.eval_results is not None
            scores = began.eval_results.datasets["held_out"]
            assert (scores.greedy, scores.total, scores.sample_count, scores.invalid) == (100.0, 6, 12, 0)
            two_versions = 0.0
            for step in range(1, 21):
                reply = await trainer.train(run_eval=step == 20)
                batch = reply.batch
                assert len(set(batch.group_id.tolist())) == B
                ages = step - 1 - batch.versions[batch.loss_mask.astype(bool)]
                assert ages.max() <= ETA
                assert ages.min() >= 0
                assert set(np.unique(batch.rewards)) == {0.0, 1.0}
                two_versions = reply.buffer_stats["trajectories_with_two_versions"]
            assert two_versions >= 1
            assert rehearsal.service.evaluation.last is not None
            assert rehearsal.service.evaluation.last.version == 20
            counters = rehearsal.service.books.ledger.counters
            rehearsal.service.books.ledger.validate()
            assert counters.trained == 20 * B
            assert counters.issued == counters.trained + counters.dropped.total() + counters.in_flight
            assert counters.dropped.keys() <= {"zero_advantage", "stale"}

    asyncio.run(asyncio.wait_for(body(), 60))
