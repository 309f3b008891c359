"""LAW 18: an engine that holds the right bytes must also compute the right thing with them.

Canaries are token sequences that never change. The trainer scores them when it publishes; an engine scores them after
it has proven a version. Digests find wrong bytes, canaries wrong arithmetic on right ones: a head that is not tied, a
rotary table of another length, a kernel that misreads a layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astraflow.core.data import Canary, Manifest
from astraflow.errors import WeightError

SEQUENCES = 2
LENGTH = 12
"""Few: an engine scores them between two decode steps, after every swap."""
TOLERANCE = {"float32": 0.01, "bfloat16": 0.5, "float16": 0.1}
"""By the coarsest dtype in the engine: highest mean |Δ logprob|, in nats. Logits of size 30 have a resolution of 0.125
in bfloat16; a wrong tensor moves the mean by several nats."""


def canary_tokens(vocab_size: int) -> list[tuple[int, ...]]:
    """The sequences for a vocabulary: ids spread evenly over it, so that rows of the embedding everywhere take part."""
    ids = np.random.default_rng(18).integers(0, vocab_size, (SEQUENCES, LENGTH))
    return [tuple(row) for row in ids.tolist()]


def tolerance(manifest: Manifest) -> float:
    """Highest gap for a version, by the coarsest dtype it has."""
    return max((TOLERANCE.get(entry.dtype, 1.0) for entry in manifest.tensors), default=0.0)


def canary_gap(canaries: Sequence[Canary], scored: Sequence[np.ndarray]) -> float:
    """Mean |Δ logprob| over all canaries; infinite where an engine gives what is no number."""
    expected = np.concatenate([np.asarray(canary.logprobs, np.float64) for canary in canaries])
    found = np.concatenate([np.asarray(values, np.float64) for values in scored])
    if found.shape != expected.shape:
        raise WeightError(f"the engine scored {found.size} tokens of canaries that have {expected.size}")
    gap = float(np.abs(found - expected).mean())
    return gap if np.isfinite(gap) else float("inf")
