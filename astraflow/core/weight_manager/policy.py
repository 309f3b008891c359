"""Delta or full? Decided per pull, without IO, from what the engine is proven to hold and how the last ones went.

A delta is asked for only on a base that the engine proved. Whatever goes wrong with a delta, or after it, costs trust:
the next pull is full.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from astraflow.core.data import Manifest

Strategy = Literal["full", "delta"]
WORTH = 0.5
"""A chain of deltas longer than this share of the full version is not pulled: applying it costs as well."""


class SyncPolicy:
    """The choice of one receiver for one engine."""

    def __init__(self, strategy: Strategy = "full", full_sync_interval: int = 0) -> None:
        """`full_sync_interval`: after so many deltas in a row comes a full version; 0: never for that reason."""
        self._strategy = strategy
        self._interval = full_sync_interval
        self._base: Manifest | None = None
        self._deltas = 0
        self.full_because: Counter[str] = Counter()
        """Why pulls were full although deltas are configured, by reason."""

    @property
    def strategy(self) -> Strategy:
        return self._strategy

    def base_for(self, target: Manifest) -> Manifest | None:
        """The version to build on, or None: pull `target` in full."""
        if self._strategy == "full":
            return None
        reason = self._objection(target)
        if reason:
            self.full_because[reason] += 1
            return None
        return self._base

    def worth(self, length: int, target: Manifest) -> bool:
        """Whether deltas of `length` bytes in all are worth pulling."""
        return length <= WORTH * target.nbytes

    def fell_back(self, reason: str) -> None:
        """A delta was asked for and did not come, or was no good; the engine holds what it held."""
        self.full_because[reason] += 1

    def proved(self, manifest: Manifest, mode: str) -> None:
        """The engine proved that it holds `manifest`."""
        self._base = manifest
        self._deltas = self._deltas + 1 if mode == "delta" else 0

    def distrust(self) -> None:
        """A version failed in the engine: nothing is built on what it holds."""
        self._base = None

    def _objection(self, target: Manifest) -> str:
        if self._base is None:
            return "no_proven_base"
        if self._base.model_id != target.model_id or self._base.version >= target.version:
            return "base_not_older"
        if self._interval and self._deltas >= self._interval:
            return "full_sync_interval"
        return ""
