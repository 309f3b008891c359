"""A batch as the policy's loss sees it: raw rewards → shaped rewards → outcomes → advantages per token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from astraflow.core.data import Batch
from astraflow.train_worker.algorithms.advantage import outcome_advantages, overlong_penalty, shape_rewards
from astraflow.train_worker.algorithms.aggregation import token_weights
from astraflow.train_worker.algorithms.normalisation import normalise, normalise_advantages
from astraflow.train_worker.algorithms.spans import longest_run, span_of_token
from astraflow.train_worker.config import ActorConfig
from astraflow.train_worker.packed_rows import PackedRows
from astraflow.train_worker.packing import split_groups


@dataclass(frozen=True)
class PolicyBatch:
    """N trajectories of T tokens, ready for the loss."""

    rows: PackedRows
    """Streams: behaviour_logprobs, versions, advantages; proximal_logprobs once they were computed."""
    group_id: Tensor
    """int64 [N]."""
    shaped_rewards: Tensor
    """float32 [N], after bias, scaling, clip and over-long penalty."""

    @classmethod
    def of(cls, batch: Batch, actor: ActorConfig, max_new_tokens: int) -> Self:
        """Shape the rewards and compute the advantages by the groups' ids, over the whole batch."""
        rows = PackedRows.of_batch(batch)
        group_id = torch.from_numpy(batch.group_id.astype("int64"))
        sample_id = torch.from_numpy(batch.sample_id.astype("int64"))
        shaped = _shaped(torch.from_numpy(batch.rewards.astype("float32")), rows, actor, max_new_tokens)
        outcome = shaped
        if actor.reward_norm is not None:
            outcome = normalise(shaped, group_id, actor.reward_norm, sample_id)
        advantages = outcome_advantages(outcome, rows.mask, rows.cu_seqlens)
        if actor.adv_norm is not None:
            groups_T = group_id[span_of_token(rows.cu_seqlens)]
            advantages = normalise_advantages(advantages, rows.mask, groups_T, actor.adv_norm)
        return cls(rows.with_streams(advantages=advantages), group_id, shaped)

    def with_proximal(self, logprobs_T: Tensor) -> PolicyBatch:
        """Add the logprobs of the policy before the first optimiser step."""
        return replace(self, rows=self.rows.with_streams(proximal_logprobs=logprobs_T))

    def minibatches(self, actor: ActorConfig) -> list[Minibatch]:
        """Cut into optimiser steps, groups whole; each with weights over all of its rows.

        As many as there are groups, where rows that could not be trained on left fewer than the configured minibatches.
        """
        parts = []
        groups = len(set(self.group_id.tolist()))
        for items in split_groups(self.group_id.tolist(), min(actor.ppo_n_minibatches, groups)):
            rows = self.rows.select(items)
            weights = token_weights(
                rows.mask, rows.cu_seqlens, actor.loss_agg, self.group_id[items], actor.loss_constant
            )
            parts.append(Minibatch(items, rows, weights))
        return parts


@dataclass(frozen=True)
class Minibatch:
    """The rows of one optimiser step."""

    items: list[int]
    """Their numbers in the batch."""
    rows: PackedRows
    weights: Tensor
    """float32 [T of these rows], numerator and denominator of the loss."""


def _shaped(raw: Tensor, rows: PackedRows, actor: ActorConfig, max_new_tokens: int) -> Tensor:
    penalty: Tensor | float = 0.0
    if actor.overlong is not None:
        # the limit is that of one generation, of which a row may have several
        sampled = longest_run(rows.mask, rows.cu_seqlens)
        penalty = overlong_penalty(sampled, max_new_tokens, actor.overlong.buffer_len, actor.overlong.penalty_factor)
    return shape_rewards(raw, penalty, bias=actor.reward_bias, scaling=actor.reward_scaling, clip=actor.reward_clip)
