"""Is a change an improvement? Two scores of each held-out case, before and after, compared case by case."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import msgspec

from astraflow.errors import DataError

EXACT_CASES = 14
"""Up to here all 2^n sign patterns are counted; beyond, DRAWS of them are drawn with a fixed seed."""
DRAWS = 20_000


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Paired scores and what they say."""

    before: dict[str, float]
    """Case → score."""
    after: dict[str, float]
    effect: float
    """Mean of after − before."""
    p_value: float
    """Chance of such a mean, or a better one, were before and after exchangeable in each case (one-sided)."""


def compare(before: dict[str, float], after: dict[str, float]) -> Comparison:
    """Compare two runs over the same cases; DataError where the cases differ or there are none."""
    if not before or before.keys() != after.keys():
        raise DataError("a paired comparison needs the same cases, at least one, before and after")
    differences = [after[case] - before[case] for case in before]
    return Comparison(
        before=before,
        after=after,
        effect=sum(differences) / len(differences),
        p_value=sign_flip_p_value(differences),
    )


def sign_flip_p_value(differences: Sequence[float]) -> float:
    """One-sided p-value of the paired permutation test (Fisher's randomisation test on the signs)."""
    sizes = [abs(difference) for difference in differences if difference]
    if not sizes:
        return 1.0
    observed = sum(differences) - 1e-12
    if len(sizes) <= EXACT_CASES:
        patterns = list(itertools.product((1, -1), repeat=len(sizes)))
        hits = sum(sum(s * d for s, d in zip(signs, sizes, strict=True)) >= observed for signs in patterns)
        return hits / len(patterns)
    source = random.Random(0)
    hits = sum(sum(source.choice((1, -1)) * d for d in sizes) >= observed for _ in range(DRAWS))
    return (hits + 1) / (DRAWS + 1)
