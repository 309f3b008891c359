"""The tensors of the embedded engine: what every row is doing, prefill, and the decode step.

Everything a step touches lies in preallocated buffers whose first R rows run; a step reads one list back from the
device, the rows that have ended.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np
import torch
from torch import Tensor

from astraflow.core.model import Decoder
from astraflow.raas.engines.base import Output
from astraflow.raas.engines.embedded.cache import DecodeAttention, KVCache, PrefillAttention
from astraflow.raas.engines.embedded.sampling import Sampler
from astraflow.raas.engines.embedded.scheduler import Plan, Sequence

PREFILL_TOKENS = 4096
"""Prompt tokens of one prefill pass; bounds the memory of its activations."""


class Runner:
    """A decoder, its KV cache and the state of S rows. Used from one thread."""

    def __init__(
        self, decoder: Decoder, rows: int, context_length: int, seed: int, positions: int | None = None
    ) -> None:
        """`positions` of the cache are shared by the rows that run; None: no bound."""
        decoder.stack_weights()
        self.decoder = decoder
        weight = decoder.model.embed_tokens.weight
        self._device = weight.device
        self._cache = KVCache(decoder.config, rows, positions, weight.dtype, self._device)
        self._reach = 0
        """Most positions that a row may come to need."""
        self._sampler = Sampler(rows, decoder.config.vocab_size, context_length, seed, self._device)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=self._device)

        self._token, self._position = integers(rows), integers(rows)
        self._produced, self._budget = integers(rows, 1), integers(rows, 1)
        self._tokens = torch.zeros(rows, context_length, dtype=torch.int32, device=self._device)
        self._logprobs = torch.zeros(rows, context_length, device=self._device)
        self._versions = torch.zeros(rows, context_length, dtype=torch.int32, device=self._device)

    @property
    def cache_shape(self) -> tuple[int, int]:
        """Rows of the cache, and positions of each."""
        return self._cache.shape

    @torch.inference_mode()
    def place(self, plan: Plan) -> None:
        """Put sequences into their rows and bring their prompts' keys and values there.

        Where it raises, nothing but the rows of these sequences has changed.
        """
        if not plan.placed:
            return
        self._cache.reserve(plan.rows, max(sequence.prefix_length for sequence in plan.placed) + 1, plan.reach)
        self._reach = plan.reach
        lengths = {sequence.row: sequence.prefix_length for sequence in plan.placed}
        self._cache.copy(plan.copies, max((lengths[row] for _, row in plan.copies), default=0))
        self._prefill(plan.prefill)
        self._cache.copy(plan.shares, max((lengths[row] for _, row in plan.shares), default=0))
        rows = [sequence.row for sequence in plan.placed]
        self._token[rows] = self._tensor([int(sequence.request.input_ids[-1]) for sequence in plan.placed])
        self._position[rows] = self._tensor([sequence.prefix_length for sequence in plan.placed])
        self._budget[rows, 0] = self._tensor([sequence.budget for sequence in plan.placed])
        self._produced[rows] = 0
        self._sampler.place(plan.placed)

    @torch.inference_mode()
    def move(self, moves: List[tuple[int, int]]) -> None:
        """Carry rows over to other rows, everything included."""
        if not moves:
            return
        sources, targets = map(list, zip(*moves, strict=True))
        self._cache.copy(list(moves), int(self._position[sources].max()))
        self._sampler.move(sources, targets)
        state = (self._token, self._position, self._produced, self._budget)
        for tensor in (*state, self._tokens, self._logprobs, self._versions):
            tensor[targets] = tensor[sources]

    @torch.inference_mode()
    def step(self, rows: int, version: int) -> list[int]:
        """Sample one token in each of the first `rows` rows; return the rows that have ended."""
        position, produced = self._position[:rows], self._produced[:rows]
        width = int(position.max()) + 1
        self._cache.reserve(rows, width, self._reach)
        hidden = self.decoder(self._token[:rows], position, DecodeAttention(self._cache, position, width))
        tokens, logprobs = self._sampler.sample(self.decoder.logits(hidden), produced)
        self._tokens[:rows].scatter_(1, produced, tokens.int())
        self._logprobs[:rows].scatter_(1, produced, logprobs)
        self._versions[:rows].scatter_(1, produced, version)
        self._token[:rows] = tokens.squeeze(1)
        position += 1
        produced += 1
        ended = self._sampler.ends[:rows].gather(1, tokens)
        # a logprob that is no number means broken weights: the row ends, and `take` shows it
        ended |= (produced >= self._budget[:rows]) | logprobs.isnan()
        ended_rows: list[int] = ended.view(-1).nonzero().view(-1).tolist()
        return ended_rows

    def take(self, sequences: List[Sequence]) -> list[Output]:
        """Return what ended sequences have sampled, and release their settings."""
        for sequence in sequences:
            self._sampler.release(sequence)
        return self.peek([sequence.row for sequence in sequences])

    def peek(self, rows: List[int]) -> list[Output]:
        """Return what rows have sampled so far."""
        if not rows:
            return []
        index = self._tensor(rows)
        lengths = self._produced[index, 0].tolist()
        longest = max(lengths)
        tokens, logprobs, versions = (
            tensor[index, :longest].cpu().numpy() for tensor in (self._tokens, self._logprobs, self._versions)
        )
        return [Output(tokens[i, :n], logprobs[i, :n], versions[i, :n]) for i, n in enumerate(lengths)]

    @torch.inference_mode()
    def clear(self, rows: list[int]) -> None:
        """After a failure: leave nothing in these rows of the cache that is not finite."""
        self._cache.clear(rows)

    def reset(self) -> None:
        """After a failed step: forget what rows asked for; nothing runs any more."""
        self.clear(list(range(len(self._token))))
        self._sampler.reset()

    def _prefill(self, sequences: List[Sequence]) -> None:
        batch: list[Sequence] = []
        for number, sequence in enumerate(sequences, 1):
            batch.append(sequence)
            following = sequences[number].prefix_length if number < len(sequences) else PREFILL_TOKENS
            if sum(one.prefix_length for one in batch) + following > PREFILL_TOKENS:
                self._prefill_pass(batch)
                batch = []

    def _prefill_pass(self, sequences: List[Sequence]) -> None:
        lengths = self._tensor([0, *(sequence.prefix_length for sequence in sequences)])
        attend = PrefillAttention(self._cache, lengths.cumsum(0), self._tensor([one.row for one in sequences]))
        ids = np.concatenate([sequence.request.input_ids[:-1] for sequence in sequences]).astype(np.int64)
        self.decoder(torch.from_numpy(ids).to(self._device), attend.positions, attend)

    def _tensor(self, values: List[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
