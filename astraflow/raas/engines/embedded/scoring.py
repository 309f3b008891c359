"""Logprobs of given tokens, beside what is being decoded: touches neither the cache nor any row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from astraflow.core.model import Decoder, packed_attention, packed_positions


@torch.inference_mode()
def score(decoder: Decoder, sequences: Sequence[Sequence[int]], temperature: float) -> list[np.ndarray]:
    """float32 [length − 1] per sequence: the logprob of each token but the first, given those before it."""
    device = decoder.model.embed_tokens.weight.device
    lengths = torch.tensor([0, *map(len, sequences)], device=device)
    ids = torch.tensor([token for sequence in sequences for token in sequence], device=device)
    cu_seqlens = lengths.cumsum(0)
    hidden = decoder(ids, packed_positions(cu_seqlens), packed_attention(cu_seqlens))
    logprobs = (decoder.logits(hidden).float() / temperature).log_softmax(-1)
    of_next = logprobs[:-1].gather(1, ids[1:, None]).squeeze(1).cpu().numpy()
    ends = cu_seqlens.cpu().tolist()
    return [of_next[a : b - 1] for a, b in itertools.pairwise(ends)]
