"""A version's verified bytes, waiting to be applied; afterwards, what they overwrote.

received, verified ──apply──► proven by the engine's own digest ──release──► final
                      │ not proven: undone, WeightError      │ rollback: undone (a later check failed)
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astraflow.core.data import Manifest
from astraflow.core.weight_manager.delta import Change
from astraflow.core.weight_manager.digest import describe_difference, differing
from astraflow.core.weight_manager.handover import DeltaHandover, Handover, handover_for
from astraflow.core.weight_manager.policy import SyncPolicy
from astraflow.errors import AstraFlowError, WeightError, boundary


class Payload:
    """What every payload does; how bytes get into the engine is its kind's own (`_write`)."""

    mode: str
    """full or delta"""

    def __init__(self, manifest: Manifest, length: int, policy: SyncPolicy) -> None:
        self.manifest = manifest
        self.bytes = length
        """That travelled."""
        self.broken = 0
        """Tensors that arrived broken and were fetched again."""
        self.timing: dict[str, float] = {}
        """pull_s, verify_s and, once applied, load_s."""
        self._policy = policy
        self._handover: Handover | None = None
        self._open = True

    @property
    def version(self) -> int:
        return self.manifest.version

    def apply(self, weights: Mapping[str, Any] | Handover) -> None:
        """Overwrite an engine's weights in place and prove it; runs on the engine's thread, once.

        `weights`: torch tensors or writable buffers of wire bytes by name, or an engine's own Handover. On
        WeightError the engine holds what it held before, bit for bit.
        """
        if not self._open or self._handover is not None:
            raise WeightError(f"version {self.version} was applied or released already")
        started = time.perf_counter()
        self._policy.distrust()  # until it is proven
        handover = handover_for(weights)
        try:
            with boundary(WeightError, f"version {self.version} cannot be applied"):
                self._write(handover)
            with boundary(WeightError, f"version {self.version} cannot be proven"):
                wrong = differing(self.manifest, handover.digests(self.manifest))
        except AstraFlowError:
            handover.rollback()
            raise
        if wrong:
            handover.rollback()
            raise WeightError(
                f"the engine does not hold version {self.version} after it was applied ({self.mode}): "
                f"{describe_difference(wrong, self.manifest)}; rolled back"
            )
        self._handover = handover
        self._policy.proved(self.manifest, self.mode)
        self.timing["load_s"] = time.perf_counter() - started

    def rollback(self) -> None:
        """Undo a successful `apply` (a later check failed), on the engine's thread."""
        if self._handover is None or not self._open:
            raise WeightError(f"version {self.version} is not applied, or was released")
        self._handover.rollback()
        self._policy.distrust()
        self.release()

    def release(self) -> None:
        """The version is final: let go of the memory. Again is fine."""
        self._handover = None
        self._open = False

    def _write(self, handover: Handover) -> None:
        raise NotImplementedError


class FullPayload(Payload):
    """All bytes of a version, in a staging buffer that goes back to the receiver."""

    mode = "full"

    def __init__(
        self, manifest: Manifest, staging: mmap.mmap, policy: SyncPolicy, give_back: Callable[[mmap.mmap], None]
    ) -> None:
        super().__init__(manifest, manifest.nbytes, policy)
        self._staging: mmap.mmap | None = staging
        self._give_back = give_back

    def release(self) -> None:
        super().release()
        staging, self._staging = self._staging, None
        if staging is not None:
            self._give_back(staging)

    def _write(self, handover: Handover) -> None:
        assert self._staging is not None
        handover.apply(self.manifest, memoryview(self._staging)[: self.bytes])


class DeltaPayload(Payload):
    """The changes from the version that the engine holds, of one delta or of a chain."""

    mode = "delta"

    def __init__(self, manifest: Manifest, length: int, changes: Sequence[Change], policy: SyncPolicy) -> None:
        super().__init__(manifest, length, policy)
        self._changes: Sequence[Change] = changes

    def release(self) -> None:
        super().release()
        self._changes = ()

    def _write(self, handover: Handover) -> None:
        if not isinstance(handover, DeltaHandover):
            raise WeightError(f"this engine cannot take single elements: version {self.version} has to come in full")
        handover.overwrite(self.manifest, self._changes)
