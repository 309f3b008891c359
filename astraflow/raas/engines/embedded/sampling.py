"""Sampling for a batch of rows that each have their own settings, and the logprob of what was sampled.

A token is drawn by inverting the cumulative distribution at a number that the row drew when it was placed: one number
per token instead of one per vocabulary entry, and a row's draws depend on nothing but its own seed. Work that no
running row asks for (penalties, truncation, temperature) is skipped.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from astraflow.core.data import GenerationHyperparameters
from astraflow.raas.engines.embedded.scheduler import Sequence


class Sampler:
    """Settings of S rows and their draws. R is the number of running rows, V the vocabulary."""

    def __init__(self, rows: int, vocab_size: int, max_tokens: int, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._draws = torch.zeros(rows, max_tokens, device=device)
        self._temperature = torch.ones(rows, 1, device=device)
        self._greedy = torch.zeros(rows, 1, dtype=torch.bool, device=device)
        self._top_p = torch.ones(rows, 1, device=device)
        self._top_k = torch.full((rows, 1), vocab_size, device=device)
        self._min_new = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._penalty = torch.zeros(rows, 1, device=device)
        self._counts = torch.zeros(rows, vocab_size, device=device)
        self._probs = torch.zeros(rows, vocab_size, device=device)
        self.ends = torch.zeros(rows, vocab_size, dtype=torch.bool, device=device)
        """Tokens that end each row."""
        self._uses: Counter[str] = Counter()

    def place(self, sequences: list[Sequence]) -> None:
        """Set rows up for the sequences placed in them; where it raises, nothing is to be released."""
        rows = [sequence.row for sequence in sequences]
        configs = [sequence.request.gconfig for sequence in sequences]
        vocab_size = self.ends.shape[1]
        settings = (
            (self._temperature, [1.0 if config.greedy else config.temperature for config in configs]),
            (self._greedy, [config.greedy for config in configs]),
            (self._top_p, [1.0 if config.greedy else config.top_p for config in configs]),
            (self._top_k, [vocab_size if config.greedy else config.top_k or vocab_size for config in configs]),
            (self._min_new, [config.min_new_tokens for config in configs]),
            (self._penalty, [config.frequency_penalty for config in configs]),
        )
        for tensor, values in settings:
            tensor[rows, 0] = torch.tensor(values, dtype=tensor.dtype, device=tensor.device)
        self._counts[rows] = 0.0
        self.ends[rows] = False
        ends = [(sequence.row, token) for sequence in sequences for token in sequence.ends]
        if ends:
            self.ends[tuple(map(list, zip(*ends, strict=True)))] = True
        longest = max(sequence.budget for sequence in sequences)
        self._draws[rows, :longest] = torch.rand(len(rows), longest, generator=self._generator).to(self._draws.device)
        for sequence, config in zip(sequences, configs, strict=True):
            if config.seed is not None:
                own = torch.Generator().manual_seed(config.seed)
                self._draws[sequence.row, : sequence.budget] = torch.rand(sequence.budget, generator=own)
            if config.frequency_penalty and sequence.request.sampled:
                earlier = torch.from_numpy(sequence.sampled.astype(np.int64))
                self._counts[sequence.row] = earlier.bincount(minlength=vocab_size).to(self._counts)
        for config in configs:  # last, so that what is counted is what was placed
            self._uses.update(_features(config))

    def release(self, sequence: Sequence) -> None:
        """A sequence has ended: its settings need no more work."""
        self._uses.subtract(_features(sequence.request.gconfig))

    def reset(self) -> None:
        """Nothing runs any more."""
        self._uses.clear()

    def move(self, sources: list[int], targets: list[int]) -> None:
        """Carry rows over to other rows."""
        always = (self._draws, self._temperature, self._greedy, self._top_p, self._top_k, self._min_new, self._penalty)
        for tensor in (*always, self.ends, *([self._counts] if self._uses["penalty"] else [])):
            tensor[targets] = tensor[sources]

    def sample(self, logits_RV: Tensor, produced_R1: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens int64 [R, 1] and their logprobs float32 [R, 1]; `produced` counts the tokens before this one.

        The logprob is that of the distribution the token was drawn from: after penalty, temperature, and renormalised
        over what end-token bans, top-k and top-p leave. Greedy rows: of temperature 1.
        """
        rows = len(logits_RV)
        logits = logits_RV.float()
        if self._uses["penalty"]:
            logits = logits - self._penalty[:rows] * self._counts[:rows]
        if self._uses["min_new"]:
            logits = logits.masked_fill(self.ends[:rows] & (produced_R1 < self._min_new[:rows]), float("-inf"))
        if self._uses["temperature"]:
            logits = logits / self._temperature[:rows]
        if self._uses["truncation"]:
            logits = truncate(logits, self._top_k[:rows], self._top_p[:rows])
        probs = torch.softmax(logits, -1, out=self._probs[:rows])
        if self._uses["drawn"]:
            mass = probs.cumsum(-1)
            total = mass[:, -1:]
            draw = self._draws[:rows].gather(1, produced_R1) * total
            # right=True never lands on a token without mass; a draw rounded up to the total would land behind the last
            draw = torch.minimum(draw, torch.nextafter(total, torch.zeros_like(total)))
            tokens = torch.searchsorted(mass, draw, right=True).clamp_(max=probs.shape[1] - 1)
            if self._uses["greedy"]:
                tokens = torch.where(self._greedy[:rows], logits.argmax(-1, keepdim=True), tokens)
        else:
            tokens = logits.argmax(-1, keepdim=True)
        if self._uses["penalty"]:
            self._counts[:rows].scatter_add_(1, tokens, torch.ones_like(tokens, dtype=torch.float32))
        return tokens, probs.gather(1, tokens).log()


def truncate(logits_RV: Tensor, top_k_R1: Tensor, top_p_R1: Tensor) -> Tensor:
    """Return logits, -inf outside the top k and, of these, outside the smallest set of mass ≥ top_p."""
    ordered, order = logits_RV.sort(-1, descending=True)
    ranks = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    ordered = ordered.masked_fill(ranks >= top_k_R1, float("-inf"))
    probs = ordered.softmax(-1)
    # a token stays while the mass before it is below top_p, so the most likely one always does
    ordered = ordered.masked_fill((probs.cumsum(-1) - probs >= top_p_R1) & (ranks > 0), float("-inf"))
    return torch.empty_like(logits_RV).scatter_(1, order, ordered)


def _features(config: GenerationHyperparameters) -> dict[str, int]:
    """What a row asks for beyond a plain softmax."""
    return {
        "greedy": int(config.greedy),
        "drawn": int(not config.greedy),
        "temperature": int(not config.greedy and config.temperature != 1.0),
        "truncation": int(not config.greedy and (config.top_p < 1.0 or config.top_k > 0)),
        "min_new": int(config.min_new_tokens > 0),
        "penalty": int(config.frequency_penalty != 0.0),
    }
