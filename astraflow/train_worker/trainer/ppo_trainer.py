"""The trainer of one policy.

    get_batch → shape rewards → advantages → optimiser steps → publish → notify_version → log

Every version it announces is published before: version 0 before /ready, version s after step s. With `run_eval` a
notification returns when the evaluation is done, so a step's record holds the scores of the version it made; where
evaluations go on beside training, the record of a later step holds them (`eval/version` says whose they are).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from astraflow.core.data import Batch, Canary, Manifest
from astraflow.core.observability.kept import TrainerLogprobs, kept_rows
from astraflow.core.observability.lines import write_whole
from astraflow.core.observability.run_directory import RunDirectory
from astraflow.core.observability.spans import SpanLog
from astraflow.core.protocol import messages as m
from astraflow.core.text.tokenizer import Tokenizer
from astraflow.errors import WireError
from astraflow.train_worker.canaries import scored_canaries
from astraflow.train_worker.checkpoint import TrainerProgress
from astraflow.train_worker.config import TrainWorkerSettings
from astraflow.train_worker.engine.base import StepResult, TrainEngine
from astraflow.train_worker.trainer.astraflow_client import AstraFlowClient
from astraflow.train_worker.trainer.fitting import Fitting
from astraflow.train_worker.trainer.policy_batch import Minibatch, PolicyBatch
from astraflow.train_worker.trainer.policy_objective import PolicyObjective, needs_proximal
from astraflow.train_worker.trainer.policy_stats import batch_stats, eval_stats, update_stats
from astraflow.train_worker.trainer.recovery import NoRecovery, Recovery

LOGGER = logging.getLogger("astraflow.trainer")


class Publisher(Protocol):
    """Makes weight versions available to rollout services (WeightManager)."""

    def initialize(
        self, named_params: Mapping[str, Tensor], aliases: Mapping[str, tuple[str, ...]] | None = None
    ) -> None: ...

    def offload(
        self,
        named_params: Mapping[str, Tensor],
        version: int,
        *,
        canaries: tuple[Canary, ...] = (),
        restored: bool = False,
    ) -> dict[str, float]: ...

    def manifest(self, version: int) -> Manifest: ...

    def get_sender_endpoint(self) -> str: ...


class Metrics(Protocol):
    """Where a step's statistics go (StatsLogger)."""

    def commit(self, step: int, stats: Mapping[str, float]) -> None: ...


class AstraFlowPPOTrainer:
    """Trains one policy on what Dataflow serves; owns neither its client, its publisher nor its metrics."""

    def __init__(
        self,
        settings: TrainWorkerSettings,
        engine: TrainEngine,
        client: AstraFlowClient,
        publisher: Publisher,
        metrics: Metrics,
        tokenizer: Tokenizer,
        spans: SpanLog | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        """recovery None: it always begins anew."""
        self.settings = settings
        self.engine = engine
        self.client = client
        self.publisher = publisher
        self.metrics = metrics
        self.tokenizer = tokenizer
        self.version = 0
        self.recovery = recovery or NoRecovery()
        self._step_of = {0: 0}
        """Which step made each version."""
        self._config = settings.trainer
        self._run_dir = RunDirectory(settings.run_dir)
        self._spans = spans
        self._seconds: dict[str, float] = {}
        self._kept: list[TrainerLogprobs] = []
        self._unchanged = False
        """The last batch changed nothing, as it should: the next version has the bytes of the one before."""
        self._fitting = Fitting(engine.limits)

    def train(self) -> None:
        """Run all steps; returns after the last version is evaluated and saved."""
        done = self.start()
        for step in range(done + 1, self._config.total_train_steps + 1):
            with self._phase("wait_batch"):
                reply = self.client.get_batch(self.version, self._config.batch_timeout_s)
            with self._phase("train"):
                stats = self.train_on(reply.batch)
            self.version += 1
            self._step_of[self.version] = step
            stats |= self.announce(step, run_eval=self._evaluates(step))
            if self._saves(step):
                with self._phase("save"):
                    self.engine.save(self._run_dir.checkpoint(step, self.settings.further), self.tokenizer)
            self._write_kept(step)
            self._commit(step, {**reply.buffer_stats, **stats})
            self.recovery.keep(TrainerProgress(step, self.version, self._step_of))

    def start(self) -> int:
        """Publish the first version and tell Dataflow that this trainer is ready, or back; returns the steps done.

        Evaluates before the first step where the configuration says so.
        """
        status = self.client.initialize()
        found = self.recovery.restore(status)
        step = None if found is None else found.step
        self.publisher.initialize(dict(self.engine.named_weights()), self.engine.aliases())
        endpoint = self.publisher.get_sender_endpoint()
        for name in (f"train_worker-{self.settings.model_id}", f"sender-{self.settings.model_id}"):
            self._run_dir.announce(name, f"http://{endpoint}")
        manifest = self._begin(endpoint) if found is None else self._continue(endpoint, found)
        LOGGER.info("ready: %s, version %d is %s", self.settings.model_id, self.version, manifest.digest)
        run_eval = not step and self._config.evaluator.eval_at_start
        with self._phase("eval" if run_eval else "notify"):  # rollout services pull this version from here on
            reply = self._notify(step or 0, manifest, run_eval)
            scores = self._evaluated(reply)
        if run_eval:
            self._commit(0, scores)
        self._seconds.clear()
        return step or 0

    def _begin(self, endpoint: str) -> Manifest:
        """A fresh start: version 0 is published before Dataflow hears of us."""
        manifest = self.publish()
        self.client.signal_ready(self._config.train_batch_size, endpoint, manifest)
        return manifest

    def _continue(self, endpoint: str, found: TrainerProgress) -> Manifest:
        """Back at a step: numbers never repeat, so Dataflow says under which the restored weights are published."""
        self.version = self.client.signal_ready(
            self._config.train_batch_size, endpoint, recovered_version=found.version, recovered_step=found.step
        )
        self._step_of = {**found.step_of, self.version: found.step}
        return self.publish(restored=True)

    def train_on(self, batch: Batch) -> dict[str, float]:
        """One batch: advantages, proximal logprobs where they are needed, an optimiser step per minibatch.

        Rows that the engine cannot take are left out and counted; without any other the weights stay as they are.
        """
        fitting, counted = self._fitting.of(batch)
        self._unchanged = fitting is None
        if fitting is None:
            self._kept = []
            return counted
        return counted | self._train_on(fitting)

    def _train_on(self, batch: Batch) -> dict[str, float]:
        actor = self._config.actor
        policy = PolicyBatch.of(batch, actor, self.settings.max_new_tokens)
        if needs_proximal(actor):
            policy = policy.with_proximal(self.engine.forward(policy.rows).logprobs)
        objective = PolicyObjective.of(actor, policy.rows)
        minibatches = policy.minibatches(actor)
        results = [self.engine.train_step(part.rows, part.weights, objective) for part in minibatches]
        self.engine.release()
        self._unchanged = all(result.skipped for result in results)
        initial = _initial_logprobs(policy, minibatches, results)
        self._kept = _kept_logprobs(batch, initial)
        return batch_stats(batch, policy, initial, self.version, self._step_of) | update_stats(
            objective, minibatches, results
        )

    def announce(self, step: int, run_eval: bool) -> dict[str, float]:
        """Publish the current version and make it Dataflow's; return the evaluation's numbers, if there was one."""
        with self._phase("publish"):
            manifest = self.publish(restored=self._unchanged)
        with self._phase("eval" if run_eval else "notify"):
            return self._evaluated(self._notify(step, manifest, run_eval))

    def _notify(self, step: int, manifest: Manifest, run_eval: bool) -> m.NotifyVersionReply:
        """Make the version Dataflow's. A concurrent evaluation is asked for, not waited for, but for the last one."""
        timeout, last = self.settings.notify_timeout_s, step == self._config.total_train_steps
        beside = run_eval and self.settings.eval_concurrent and not last
        waits = run_eval and not beside
        reply = self.client.notify_version(self.version, step, manifest, run_eval=waits, last=last, timeout=timeout)
        if beside and self.client.has_pending_notifications:
            LOGGER.warning("version %d is not evaluated: the round before it still runs", self.version)
        elif beside:
            self.client.notify_version_async(self.version, step, manifest, run_eval=True, timeout=timeout)
        return reply

    def _evaluated(self, reply: m.NotifyVersionReply) -> dict[str, float]:
        """The numbers of the evaluation that ended now, if one did."""
        stats = eval_stats(reply.eval_results)
        try:
            for beside in self.client.drain_pending_notifications(wait=False):
                scores = eval_stats(beside.eval_results)
                LOGGER.info("beside training: %s", scores)
                stats = stats or scores
        except WireError as error:
            LOGGER.warning("an evaluation beside training gave no result: %s", error)
        return stats

    def publish(self, restored: bool = False) -> Manifest:
        """Make the current weights pullable as the current version, with what they make of the canaries."""
        canaries = scored_canaries(self.engine, self.settings.temperature)
        self.publisher.offload(dict(self.engine.named_weights()), self.version, canaries=canaries, restored=restored)
        return self.publisher.manifest(self.version)

    def _evaluates(self, step: int) -> bool:
        every = self._config.evaluator.freq_steps
        return step == self._config.total_train_steps or (every is not None and step % every == 0)

    def _saves(self, step: int) -> bool:
        every = self._config.saver.freq_steps
        return step == self._config.total_train_steps or (every is not None and step % every == 0)

    def _write_kept(self, step: int) -> None:
        path = self._run_dir.trainer_logprobs(step, self.settings.model_id)
        try:
            write_whole(path, b"".join(msgspec.json.encode(kept) + b"\n" for kept in self._kept))
        except OSError as error:  # people read this, and it ends no run
            LOGGER.warning("the logprobs of step %d are not kept: %s: %s", step, path, error.strerror)

    def _commit(self, step: int, stats: Mapping[str, float]) -> None:
        seconds, self._seconds = self._seconds, {}
        speed = {}
        if "batch/tokens" in stats and seconds.get("train"):
            speed["train/tokens_per_s"] = stats["batch/tokens"] / seconds["train"]
        phases = {f"timeperf/{name}": value for name, value in seconds.items()}
        self.metrics.commit(step, {**stats, **speed, **phases, "version": float(self.version)})

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start, tick = time.time(), time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - tick
        if self._spans is not None:
            self._spans.add(name, start, self._seconds[name], version=self.version)


def _initial_logprobs(policy: PolicyBatch, minibatches: list[Minibatch], results: list[StepResult]) -> Tensor:
    """Logprobs [T] of the policy before the first optimiser step: scored apart, or those of the only step."""
    scored = policy.rows.streams.get("proximal_logprobs")
    if scored is not None:
        return scored
    initial = torch.zeros(len(policy.rows.mask))
    initial[policy.rows.token_index(minibatches[0].items)] = results[0].outputs.logprobs
    return initial


def _kept_logprobs(batch: Batch, logprobs_T: Tensor) -> list[TrainerLogprobs]:
    """Logprobs of the few rows that Dataflow keeps too."""
    offsets = batch.offsets
    rows = kept_rows(batch.group_id.tolist())
    sampled = torch.where(torch.from_numpy(batch.loss_mask.astype(bool)), logprobs_T.detach().float().cpu(), 0.0)
    return [
        TrainerLogprobs(
            sample_id=int(batch.sample_id[row]),
            logprobs=[round(x, 5) for x in sampled[offsets[row] : offsets[row + 1]].tolist()],
        )
        for row in rows
    ]
