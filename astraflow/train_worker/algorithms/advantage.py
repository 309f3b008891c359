"""Rewards → advantages per token.

Masks are over tokens, 1 where the policy sampled. A reward lands on the last *sampled* token, whatever follows it
(LAW 10); γ and λ run over sampled tokens only, so tool text and prompts neither discount nor carry reward (LAW 11).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from astraflow.train_worker.algorithms.spans import check_spans, last_masked, span_count, span_of_token


def overlong_penalty(sampled_N: Tensor, max_new_tokens: int, buffer_len: int, factor: float = 1.0) -> Tensor:
    """What a row loses for coming near the length limit, float32 [N] in [0, factor] (DAPO, arXiv 2503.14476, eq. 13).

    It grows linearly over the last `buffer_len` tokens before `max_new_tokens` and stays at `factor` past it.
    `sampled_N` counts sampled tokens only (LAW 6), of a row's longest generation.
    """
    over = sampled_N.to(torch.float32) - (max_new_tokens - buffer_len)
    return (over / buffer_len).clamp(0, 1) * factor


def shape_rewards(
    raw_N: Tensor,
    penalty_N: Tensor | float = 0.0,
    *,
    bias: float = 0.0,
    scaling: float = 1.0,
    clip: float | None = None,
) -> Tensor:
    """(raw + bias) × scaling, clipped to ± clip, less the penalty: float32 [N]. The raw rewards are kept apart."""
    shaped = (raw_N.to(torch.float32) + bias) * scaling
    if clip is not None:
        shaped = shaped.clamp(-clip, clip)
    return shaped - penalty_N


def outcome_rewards(outcome_N: Tensor, mask_T: Tensor, cu_seqlens: Tensor) -> Tensor:
    """float32 [T]: each row's outcome on its last sampled token, 0 elsewhere."""
    last = last_masked(mask_T, check_spans(cu_seqlens, len(mask_T)))
    out = torch.zeros(len(mask_T), dtype=torch.float32, device=mask_T.device)
    out[last[last >= 0]] = outcome_N.to(torch.float32)[last >= 0]
    return out


def outcome_advantages(outcome_N: Tensor, mask_T: Tensor, cu_seqlens: Tensor) -> Tensor:
    """float32 [T]: every sampled token gets its row's outcome. This is GAE with γ = λ = 1 and no critic."""
    rows = span_of_token(check_spans(cu_seqlens, len(mask_T)))
    return torch.where(mask_T.bool(), outcome_N.to(torch.float32)[rows], torch.zeros(()))


def gae(
    rewards_T: Tensor,
    values_T: Tensor,
    mask_T: Tensor,
    cu_seqlens: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap_N: Tensor | None = None,
    truncated_N: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16) over sampled tokens: (advantages [T], returns [T]).

    `values_T[t]` is the critic's value of the state that token t is sampled in. `bootstrap_N`, the value of the state
    after each row's last token, is used only where `truncated_N` is set: rows that ended without an end token
    (LAW 17). Both outputs are 0 outside the mask; rewards there raise ValueError, since they would be lost.
    """
    table = check_spans(cu_seqlens, len(mask_T))
    mask = mask_T.bool()
    if (rewards_T[~mask] != 0).any():
        raise ValueError("a reward lies outside the sampled tokens")
    rows, steps, counts = _grid(mask, table)
    width = int(counts.max()) if len(counts) else 0

    def grid(values: Tensor) -> Tensor:
        out = torch.zeros(len(counts), width, dtype=torch.float64, device=values.device)
        out[rows, steps] = values[mask].double()
        return out

    rewards_NK, values_NK = grid(rewards_T), grid(values_T)
    alive_NK = grid(torch.ones_like(rewards_T))
    after_N = torch.zeros(len(counts), dtype=torch.float64, device=mask.device)
    if bootstrap_N is not None:
        if truncated_N is None:
            raise ValueError("a bootstrap value needs truncated_N: it is used only for rows that were cut")
        after_N = torch.where(truncated_N.bool(), bootstrap_N.double(), after_N)
    advantage_N = torch.zeros_like(after_N)
    advantages_NK = torch.zeros_like(rewards_NK)
    next_value_N = after_N
    for k in reversed(range(width)):
        alive = alive_NK[:, k] > 0  # a short row starts its recursion at its own last sampled token
        delta = rewards_NK[:, k] + gamma * next_value_N - values_NK[:, k]
        advantage_N = torch.where(alive, delta + gamma * lam * advantage_N, advantage_N)
        next_value_N = torch.where(alive, values_NK[:, k], next_value_N)
        advantages_NK[:, k] = advantage_N
    advantages = torch.zeros(len(mask), dtype=torch.float32, device=mask.device)
    advantages[mask] = advantages_NK[rows, steps].float()
    returns = torch.where(mask, advantages + values_T, torch.zeros_like(advantages))
    return advantages, returns


def discounted_success(reward_N: Tensor, tries_N: Tensor, gamma: float) -> Tensor:
    """Reward of an episode that was solved at its `tries`-th try (from 1): reward × γ^(tries − 1), [N]."""
    return reward_N * gamma ** (tries_N.to(reward_N.dtype) - 1)


def turn_returns(parents: Sequence[int | None], rewards: Sequence[float | None], gamma: float) -> list[float]:
    """Return of each turn of an episode: its own reward plus γ times the mean return of the turns that continue it.

    `parents[i]` is the turn that turn i continues (None for a first turn), always an earlier one (ValueError). A turn
    is credited by its descendants only: siblings do not get each other's reward. None counts as 0.
    """
    returns = [0.0 if reward is None else float(reward) for reward in rewards]
    children = [0] * len(returns)
    for turn, parent in enumerate(parents):
        if parent is not None:
            if not 0 <= parent < turn:
                raise ValueError(f"turn {turn} continues turn {parent}, which is not before it")
            children[parent] += 1
    for turn in reversed(range(len(returns))):
        parent = parents[turn]
        if parent is not None:
            returns[parent] += gamma * returns[turn] / children[parent]
    return returns


def _grid(mask: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row and ordinal (among the row's sampled tokens) of each sampled token; how many each row has."""
    counts = span_count(mask, table)
    rows = span_of_token(table)[mask]
    before = counts.cumsum(0) - counts
    steps = torch.arange(len(rows), device=mask.device) - before[rows]
    return rows, steps, counts
