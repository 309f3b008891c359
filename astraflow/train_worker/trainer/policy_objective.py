"""The policy's objective: which loss the configuration names, with the bounds that hold for a whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from astraflow.train_worker.algorithms.losses import PolicyLoss, decoupled_ppo_loss, ppo_loss
from astraflow.train_worker.algorithms.m2po import M2Bounds, m2po_bounds
from astraflow.train_worker.algorithms.mismatch import log_ratio
from astraflow.train_worker.config import ActorConfig
from astraflow.train_worker.engine.base import TokenOutputs
from astraflow.train_worker.packed_rows import PackedRows


def needs_proximal(actor: ActorConfig) -> bool:
    """Whether the policy before the first optimiser step must be scored by a pass of its own.

    With one minibatch the only step starts from that very policy, so its own outputs serve. M2PO chooses its bounds
    over the whole batch before any micro-batch.
    """
    return actor.ppo_n_minibatches > 1 or actor.loss == "m2po"


@dataclass(frozen=True)
class PolicyObjective:
    """Loss per token of one batch; an engine's LossFunction."""

    actor: ActorConfig
    bounds: M2Bounds | None = None
    """M2PO's, over the whole batch."""

    @classmethod
    def of(cls, actor: ActorConfig, rows: PackedRows) -> PolicyObjective:
        """Choose the bounds for a batch; `rows` are all of its rows, scored before where `needs_proximal`."""
        if actor.m2_threshold is None:
            return cls(actor)
        streams = rows.streams
        ratio = log_ratio(streams["proximal_logprobs"], streams["behaviour_logprobs"], rows.mask)
        return cls(actor, m2po_bounds(ratio, streams["advantages"], rows.mask, actor.m2_threshold))

    def __call__(self, rows: PackedRows, outputs: TokenOutputs) -> Tensor:
        loss = self.policy(rows, outputs.logprobs).loss
        return loss - self.actor.entropy_coef * outputs.entropy if self.actor.entropy_coef else loss

    def policy(self, rows: PackedRows, logprobs_T: Tensor) -> PolicyLoss:
        """The policy's loss without the entropy bonus."""
        actor, streams = self.actor, rows.streams
        behaviour, advantages = streams["behaviour_logprobs"], streams["advantages"]
        if self.bounds is not None:
            bounded = partial(ppo_loss, eps_clip=self.bounds.eps_low, eps_clip_higher=self.bounds.eps_high)
            return bounded(logprobs_T, behaviour, advantages, rows.mask, c_clip=actor.c_clip)
        if actor.loss == "ppo":
            return ppo_loss(
                logprobs_T,
                behaviour,
                advantages,
                rows.mask,
                eps_clip=actor.eps_clip,
                eps_clip_higher=actor.eps_clip_higher,
                c_clip=actor.c_clip,
            )
        return decoupled_ppo_loss(
            logprobs_T,
            streams.get("proximal_logprobs", logprobs_T.detach()),
            behaviour,
            advantages,
            rows.mask,
            eps_clip=actor.eps_clip,
            eps_clip_higher=actor.eps_clip_higher,
            c_clip=actor.c_clip,
            behav_imp_weight_cap=actor.behav_imp_weight_cap,
        )
