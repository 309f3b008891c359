"""What a trainer's batches must do to the weights, from the formulas alone: nothing of the trainer's own maths is used.

Rows one by one in float64, statistics in numpy, AdamW written out. Only the decoder is the package's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from astraflow.core.data import Batch
from astraflow.core.model import Decoder, packed_attention
from astraflow.train_worker.config import ActorConfig, NormConfig, OptimizerConfig


@dataclass(frozen=True)
class Row:
    """One trajectory."""

    ids: list[int]
    sampled: list[int]
    """Places of sampled tokens."""
    behaviour: Tensor
    """float64 [sampled]."""
    group: int
    reward: float


@dataclass(frozen=True)
class Scored:
    """Sampled tokens of a row under some weights."""

    logprobs: Tensor
    entropy: Tensor


def rows_of(batch: Batch) -> list[Row]:
    rows, offsets = [], batch.offsets
    for number, (start, end) in enumerate(pairwise(offsets)):
        sampled = np.flatnonzero(batch.loss_mask[start:end]).tolist()
        behaviour = torch.tensor(batch.logprobs[start:end].astype(np.float64)[sampled])
        ids = batch.input_ids[start:end].tolist()
        rows.append(Row(ids, sampled, behaviour, int(batch.group_id[number]), float(batch.rewards[number])))
    return rows


class Reference:
    """A decoder in float64 that is trained by the formulas."""

    def __init__(
        self, decoder: Decoder, actor: ActorConfig, total_batches: int, temperature: float, max_new_tokens: int
    ) -> None:
        self.decoder = decoder.double()
        self._actor = actor
        self._total = total_batches * actor.ppo_n_minibatches
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._adamw = AdamW(actor.optimizer)

    def train_on(self, batch: Batch) -> None:
        """One optimiser step a minibatch, of whole groups."""
        rows = rows_of(batch)
        advantages = self._advantages(rows)
        with torch.no_grad():
            before = [self._score(row).logprobs for row in rows]
        loss = self._loss(rows, advantages, before)
        for numbers in minibatches([row.group for row in rows], self._actor.ppo_n_minibatches):
            self.decoder.zero_grad()
            scored = {number: self._score(rows[number]) for number in numbers}
            weights = self._weights({number: rows[number] for number in numbers})
            total = sum(weights[n] * loss(n, scored[n]) for n in numbers)
            torch.autograd.backward(torch.as_tensor(total))
            self._adamw.step(list(self.decoder.parameters()), self._total)

    def logprobs(self, batch: Batch) -> np.ndarray:
        """float64 [T]: of each token under the current weights, 0 where nothing was sampled."""
        out = np.zeros(len(batch.input_ids))
        with torch.no_grad():
            for row, start in zip(rows_of(batch), batch.offsets[:-1], strict=True):
                out[start + np.array(row.sampled)] = self._score(row).logprobs.numpy()
        return out

    def _score(self, row: Row) -> Scored:
        borders = torch.tensor([0, len(row.ids)])
        hidden = self.decoder(torch.tensor(row.ids), torch.arange(len(row.ids)), packed_attention(borders))
        every = (self.decoder.logits(hidden) / self._temperature).log_softmax(-1)[torch.tensor(row.sampled) - 1]
        chosen = every[torch.arange(len(row.sampled)), torch.tensor(row.ids)[row.sampled]]
        return Scored(chosen, -(every.exp() * every).sum(-1))

    def _advantages(self, rows: list[Row]) -> list[np.ndarray]:
        """Of each row's sampled tokens."""
        actor = self._actor
        shaped = np.array([(row.reward + actor.reward_bias) * actor.reward_scaling for row in rows])
        if actor.reward_clip is not None:
            shaped = np.clip(shaped, -actor.reward_clip, actor.reward_clip)
        if actor.overlong is not None:
            run = np.array([longest_run(row.sampled) for row in rows])
            over = (run - (self._max_new_tokens - actor.overlong.buffer_len)) / actor.overlong.buffer_len
            shaped = shaped - np.clip(over, 0, 1) * actor.overlong.penalty_factor
        groups = np.array([row.group for row in rows])
        outcome = shaped if actor.reward_norm is None else normalised(shaped, groups, actor.reward_norm)
        counts = [len(row.sampled) for row in rows]
        tokens = np.repeat(outcome, counts)
        if actor.adv_norm is not None:
            tokens = normalised(tokens, np.repeat(groups, counts), actor.adv_norm)
        return np.split(tokens, np.cumsum(counts)[:-1])

    def _loss(
        self, rows: list[Row], advantages: list[np.ndarray], before: list[Tensor]
    ) -> Callable[[int, Scored], Tensor]:
        """Loss of a row: a sum over its tokens, each times the row's share (`_weights`)."""
        actor = self._actor
        low, high = actor.eps_clip, actor.eps_clip if actor.eps_clip_higher is None else actor.eps_clip_higher
        if actor.loss == "m2po":
            behaviour = np.concatenate([row.behaviour.numpy() for row in rows])
            low, high = second_moment_bounds(
                np.concatenate([old.numpy() for old in before]) - behaviour,
                np.concatenate(advantages),
                actor.m2_threshold or 0.0,
            )

        def of(number: int, scored: Scored) -> Tensor:
            advantage, behaviour = torch.tensor(advantages[number]), rows[number].behaviour
            around = before[number] if actor.loss == "decoupled" else behaviour
            ratio = (scored.logprobs - around).exp()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
            if actor.c_clip is not None:
                loss = torch.where(advantage < 0, torch.minimum(loss, -actor.c_clip * advantage), loss)
            if actor.loss == "decoupled":
                weight = (before[number] - behaviour).exp()
                loss = loss * weight.clamp(max=actor.behav_imp_weight_cap or math.inf)
            return (loss - actor.entropy_coef * scored.entropy).sum()

        return of

    def _weights(self, rows: dict[int, Row]) -> dict[int, float]:
        """What one token of each row weighs."""
        actor, counts = self._actor, {number: len(row.sampled) for number, row in rows.items()}
        if actor.loss_agg == "token":
            return dict.fromkeys(rows, 1 / sum(counts.values()))
        if actor.loss_agg == "sequence":
            return {number: 1 / count / len(rows) for number, count in counts.items()}
        if actor.loss_agg == "constant":
            return dict.fromkeys(rows, 1 / (len(rows) * (actor.loss_constant or math.nan)))
        of_group: dict[int, int] = {}
        for number, row in rows.items():
            of_group[row.group] = of_group.get(row.group, 0) + counts[number]
        return {number: 1 / of_group[row.group] / len(of_group) for number, row in rows.items()}


class AdamW:
    """Loshchilov & Hutter, 2019, algorithm 2, with the schedule and the clipping of `OptimizerConfig`."""

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config
        self._step = 0
        self._means: dict[int, Tensor] = {}
        self._squares: dict[int, Tensor] = {}

    def step(self, parameters: list[torch.nn.Parameter], total_steps: int) -> None:
        config, gradients = self._config, [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        shrink = min(1.0, config.gradient_clipping / norm)
        rate = self._rate(total_steps)
        self._step += 1
        with torch.no_grad():
            for number, (p, g) in enumerate(zip(parameters, gradients, strict=True)):
                mean = self._means.get(number, torch.zeros_like(g)) * config.beta1 + (1 - config.beta1) * g * shrink
                square = self._squares.get(number, torch.zeros_like(g)) * config.beta2
                square = square + (1 - config.beta2) * (g * shrink).square()
                self._means[number], self._squares[number] = mean, square
                if p.ndim > 1:
                    p.mul_(1 - rate * config.weight_decay)
                mean, square = mean / (1 - config.beta1**self._step), square / (1 - config.beta2**self._step)
                p.sub_(rate * mean / (square.sqrt() + config.eps))

    def _rate(self, total: int) -> float:
        config, step = self._config, self._step
        if step < config.warmup_steps:
            return config.lr * (step + 1) / config.warmup_steps
        if config.lr_scheduler_type == "constant":
            return config.lr
        done = min((step - config.warmup_steps) / max(total - 1 - config.warmup_steps, 1), 1.0)
        left = 1 - done if config.lr_scheduler_type == "linear" else (1 + math.cos(math.pi * done)) / 2
        return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * left)


def normalised(values: np.ndarray, groups: np.ndarray, norm: NormConfig) -> np.ndarray:
    """(values − mean) / (std + eps); every value is a sample of its own."""

    def parts(level: str) -> list[np.ndarray]:
        return [groups == group for group in np.unique(groups)] if level == "group" else [groups == groups]

    centred = values.astype(np.float64).copy()
    for part in parts(norm.mean_level) if norm.mean_level != "none" else []:
        own, n = values[part], int(part.sum())
        mean = (own.sum() - own) / max(n - 1, 1) if norm.mean_leave_one_out else own.mean()
        centred[part] = 0 if n == 1 or len(set(own)) == 1 else own - mean
    for part in parts(norm.std_level) if norm.std_level != "none" else []:
        own = values[part]
        if len(set(own.tolist())) > 1:
            centred[part] /= own.std(ddof=1) + norm.eps
    return centred


def longest_run(places: list[int]) -> int:
    longest = run = 0
    for before, place in zip([-2, *places], places, strict=False):
        run = run + 1 if place == before + 1 else 1
        longest = max(longest, run)
    return longest


def second_moment_bounds(log_ratio: np.ndarray, advantages: np.ndarray, threshold: float) -> tuple[float, float]:
    violating = ((advantages > 0) & (log_ratio > 0)) | ((advantages < 0) & (log_ratio < 0))
    moments = np.sort(log_ratio[violating] ** 2)[::-1]
    if not len(moments) or moments.mean() <= threshold:
        return 0.95, 20.0
    fitting = [i for i in range(len(moments)) if moments[i:].mean() < threshold]
    bound = math.sqrt(moments[fitting[0] if fitting else -1])
    return min(1 - math.exp(-bound), 0.95), min(math.exp(bound) - 1, 20.0)


def minibatches(groups: list[int], n: int) -> list[list[int]]:
    """Row numbers of each, groups whole and in order of their first row; the first ones are the larger."""
    split = np.array_split(np.array(list(dict.fromkeys(groups))), n)
    return [[row for group in part for row, own in enumerate(groups) if own == group] for part in split]
