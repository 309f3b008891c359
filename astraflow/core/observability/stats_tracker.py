"""Denominator-aware statistics of a step.

Invariant 6 for what is shown: a mean's numerator and denominator come from one mask, summed over all calls before
dividing, so the shown value does not depend on how a batch was cut into micro-batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from astraflow.errors import DataError


class Reduce(StrEnum):
    """What becomes of a statistic's values at export."""

    MEAN = "mean"
    """Σ mask·x / Σ mask."""
    SUM = "sum"
    """Σ mask·x."""
    MIN = "min"
    """Over the positions where mask is not 0."""
    MAX = "max"
    """Over the positions where mask is not 0."""


@dataclass
class _Cell:
    total: float = 0.0
    weight: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: np.ndarray, mask: np.ndarray) -> None:
        chosen = mask != 0
        if not chosen.any():
            return
        picked = values[chosen].astype(np.float64)
        weights = mask[chosen].astype(np.float64)
        self.total += float((picked * weights).sum())
        self.weight += float(weights.sum())
        self.low = min(self.low, float(picked.min()))
        self.high = max(self.high, float(picked.max()))

    def value(self, reduce: Reduce) -> float | None:
        if self.weight == 0.0:
            return 0.0 if reduce is Reduce.SUM else None
        return {
            Reduce.MEAN: self.total / self.weight,
            Reduce.SUM: self.total,
            Reduce.MIN: self.low,
            Reduce.MAX: self.high,
        }[reduce]


class StatsTracker:
    """Collects values between two exports. Names are prefixed by the scopes that are open, joined with "/".

    Arrays may be numpy arrays, numbers, or anything with `detach()`, such as torch tensors.
    """

    def __init__(self) -> None:
        self._scopes: list[str] = []
        self._masks: dict[str, np.ndarray] = {}
        self._cells: dict[str, tuple[_Cell, tuple[Reduce, ...]]] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix what is recorded inside with `name/`."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def denominator(self, **masks: Any) -> None:
        """Set the masks (any shape) that later `stat` calls in this scope count over; each is itself shown as a sum."""
        for name, mask in masks.items():
            array = _array(mask)
            self._masks[self._key(name)] = array
            self._record(name, (Reduce.SUM,), np.ones_like(array, np.float64), array)

    def stat(self, denominator: str, *reduce: Reduce | str, **values: Any) -> None:
        """Record arrays of the shape of the mask `denominator`, set before in this scope or an outer one.

        Without `reduce` the mean is exported under the plain name; with several, each under `name/<reduce>`.
        DataError where the mask is unknown or shapes differ.
        """
        mask = self._mask(denominator)
        kinds = tuple(Reduce(kind) for kind in reduce) or (Reduce.MEAN,)
        for name, value in values.items():
            array = _array(value)
            if array.shape != mask.shape:
                raise DataError(f"statistic {self._key(name)}: shape {array.shape}, its mask has {mask.shape}")
            self._record(name, kinds, array, mask)

    def scalar(self, *reduce: Reduce | str, **values: float) -> None:
        """Record plain numbers; without `reduce`, the mean over the calls is exported."""
        kinds = tuple(Reduce(kind) for kind in reduce) or (Reduce.MEAN,)
        for name, value in values.items():
            self._record(name, kinds, _array(value).reshape(1), np.ones(1))

    @contextmanager
    def timer(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to `timeperf/<name>`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            scopes, self._scopes = self._scopes, ["timeperf"]
            self._record(name, (Reduce.SUM,), np.array([time.perf_counter() - start]), np.ones(1))
            self._scopes = scopes

    def export(self) -> dict[str, float]:
        """Return what was recorded since the last export and forget it; a mean over nothing is left out."""
        out: dict[str, float] = {}
        for key, (cell, kinds) in self._cells.items():
            for kind in kinds:
                value = cell.value(kind)
                if value is not None:
                    out[key if len(kinds) == 1 else f"{key}/{kind.value}"] = value
        self._cells.clear()
        self._masks.clear()
        return out

    def _record(self, name: str, kinds: tuple[Reduce, ...], values: np.ndarray, mask: np.ndarray) -> None:
        key = self._key(name)
        cell, known = self._cells.setdefault(key, (_Cell(), kinds))
        if known != kinds:
            raise DataError(f"statistic {key} is recorded as {known} and as {kinds}")
        cell.add(values, mask)

    def _mask(self, name: str) -> np.ndarray:
        for depth in range(len(self._scopes), -1, -1):
            key = "/".join([*self._scopes[:depth], name])
            if key in self._masks:
                return self._masks[key]
        raise DataError(f"no denominator '{name}' was set; known: {', '.join(sorted(self._masks)) or 'none'}")

    def _key(self, name: str) -> str:
        return "/".join([*self._scopes, name])


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a torch tensor, which this layer must not import; bf16 has no numpy type
        value = value.detach().float().cpu().numpy()
    return np.asarray(value)
