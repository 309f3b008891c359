"""How an engine takes a version in place, proves what it holds, and gives it back.

The three methods of `Handover` are all that a receiver has to know of an engine's weights; one that can also overwrite
single elements is a `DeltaHandover`. They run on the engine's own thread between two decode steps. An implementation
for bytes is here; the one for torch tensors is in tensors.py and is loaded only where an engine has torch tensors;
engines in other processes bring their own.

The undo log costs no second model: of a full version values are exchanged, so what was overwritten lies in the staging
buffer afterwards; of a delta only the overwritten elements are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.weight_manager.delta import Change, replace
from astraflow.core.weight_manager.digest import tensor_digest, total_digest
from astraflow.core.weight_manager.layout import match_names
from astraflow.errors import WeightError
from astraflow.registry import load_target

CHUNK = 2**20
"""Bytes exchanged at once: bounds the memory beside the tensor, and a failure leaves an undo log of whole pieces."""
_TENSORS = "astraflow.core.weight_manager.tensors:TensorHandover"


@runtime_checkable
class Handover(Protocol):
    """An engine's weights, as a receiver sees them."""

    def apply(self, manifest: Manifest, payload: memoryview) -> None:
        """Put the version that lies in `payload` (as the manifest says) into the engine, in place.

        `payload` belongs to the handover from now on and keeps what was overwritten. WeightError, with nothing changed,
        where names, shapes or dtypes do not fit.
        """
        ...

    def digests(self, manifest: Manifest) -> tuple[str, ...]:
        """Digest of each of the manifest's tensors as the engine holds it, in wire dtype and manifest order."""
        ...

    def rollback(self) -> None:
        """Put back, bit for bit, what the last `apply` overwrote; once, as far as that apply came."""
        ...


@runtime_checkable
class DeltaHandover(Handover, Protocol):
    """A handover that can also take single elements. One that cannot is given full versions only."""

    def overwrite(self, manifest: Manifest, changes: Iterable[Change]) -> None:
        """Give elements new values, in place, keeping the old ones for `rollback`.

        The engine holds a proven version of the same tensors. Elements may come again; the last value holds.
        WeightError, with nothing changed, where names, shapes or dtypes do not fit.
        """
        ...


class BufferHandover:
    """Weights that are writable buffers of wire bytes by name: numpy arrays, bytearrays, mapped files."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = {name: np.frombuffer(buffer, np.uint8) for name, buffer in weights.items()}
        self._undo: list[tuple[np.ndarray, np.ndarray | slice, np.ndarray]] = []
        """(held, where, what was there), in the order of writing."""

    def apply(self, manifest: Manifest, payload: memoryview) -> None:
        self._undo = []
        storages = self._storages(manifest)
        for entry, distinct in zip(manifest.tensors, storages, strict=True):
            fresh = np.frombuffer(payload, np.uint8, entry.nbytes, entry.offset)
            for number, held in enumerate(distinct):
                # a storage of its own under an alias needs the new values too, before they are exchanged away
                source = fresh if number == len(distinct) - 1 else fresh.copy()
                for begin in range(0, len(held), CHUNK):
                    there, coming = held[begin : begin + CHUNK], source[begin : begin + CHUNK]
                    before = there.copy()
                    there[:] = coming
                    coming[:] = before
                    self._undo.append((there, slice(None), coming))

    def overwrite(self, manifest: Manifest, changes: Iterable[Change]) -> None:
        self._undo = []
        storages = self._storages(manifest)
        for change in changes:
            where = slice(None) if change.positions is None else change.positions
            for held in storages[change.index]:
                elements = held.view(change.values.dtype)
                self._undo.append((elements, where, replace(elements, change)))

    def digests(self, manifest: Manifest) -> tuple[str, ...]:
        matched = match_names(self._weights, manifest)
        return tuple(
            agreed(entry.digest, [tensor_digest(self._weights[name].data) for name in matched[entry.name]])
            for entry in manifest.tensors
        )

    def rollback(self) -> None:
        while self._undo:
            held, where, kept = self._undo.pop()
            held[where] = kept

    def _storages(self, manifest: Manifest) -> list[list[np.ndarray]]:
        """The distinct buffers of each of the manifest's tensors, checked to fit."""
        matched = match_names(self._weights, manifest)

        def distinct(entry: TensorEntry) -> list[np.ndarray]:
            for name in matched[entry.name]:
                held = self._weights[name]
                if held.nbytes != entry.nbytes or not held.flags.writeable:
                    raise WeightError(f"{name} has {held.nbytes} bytes in the engine, {entry.nbytes} expected")
            return list({self._weights[n].ctypes.data: self._weights[n] for n in matched[entry.name]}.values())

        return [distinct(entry) for entry in manifest.tensors]


def handover_for(weights: Mapping[str, Any] | Handover) -> Handover:
    """Return the handover for what an engine gave: one of its own, torch tensors by name, or buffers by name."""
    if isinstance(weights, Handover):
        return weights
    if any(hasattr(value, "untyped_storage") for value in weights.values()):
        handover: Handover = load_target(_TENSORS)(weights)
        return handover
    return BufferHandover(weights)


def digest_of(weights: Mapping[str, Any] | Handover, manifest: Manifest) -> str:
    """The total digest of an engine's weights as on the wire: equal to manifest.digest, or it is not that version."""
    return total_digest(manifest.tensors, handover_for(weights).digests(manifest))


def agreed(expected: str, digests: list[str]) -> str:
    """The digest of a tensor held under several names: one that is wrong under any name is wrong."""
    return next((digest for digest in digests if digest != expected), digests[0])
