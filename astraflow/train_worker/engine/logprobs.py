"""Log-probabilities and entropies of chosen tokens, without more logits than are needed.

Only positions that predict a token of the mask go through the LM head; with a large vocabulary they go in slices whose
logits are computed again in the backward pass, so at most one slice of them exists.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MAX_LOGITS = 2**22
"""Most logits (float32) of one slice: 16 MiB, of which forward and backward hold half a dozen copies."""


def entropy_of(logits_MV: Tensor) -> Tensor:
    """Entropy of softmax(logits) in nats, [M]; impossible tokens (−inf) add nothing."""
    logp = logits_MV.log_softmax(-1)
    possible = logp > -torch.inf
    finite = torch.where(possible, logp, torch.zeros_like(logp))
    return -(torch.where(possible, logp.exp(), torch.zeros_like(logp)) * finite).sum(-1)


def token_logprobs(
    hidden_MC: Tensor,
    targets_M: Tensor,
    head: Callable[[Tensor], Tensor],
    vocab_size: int,
    temperature: float = 1.0,
    max_logits: int = MAX_LOGITS,
) -> tuple[Tensor, Tensor]:
    """Return log softmax(head(hidden) / temperature)[target] and the entropy of that distribution, float32 [M] each.

    `head` maps hidden states [m, C] to logits [m, vocab_size]. The entropy carries a gradient like the logprobs.
    """

    def score(hidden_mC: Tensor, targets_m: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden_mC).float()
        if temperature != 1.0:
            logits = logits / temperature
        logp = logits.log_softmax(-1)
        return logp.gather(-1, targets_m[:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1)

    rows = max(max_logits // vocab_size, 1)
    if len(targets_M) <= rows:
        return score(hidden_MC, targets_M)
    parts = [
        checkpoint(score, hidden, targets, use_reentrant=False)
        for hidden, targets in zip(torch.split(hidden_MC, rows), torch.split(targets_M, rows), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
