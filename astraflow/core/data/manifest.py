"""Invariant 5, provenance: a version is (model, number, manifest digest).

A manifest is the identity of a weight version. An engine serves under a version only after its own digest equals the
manifest's; WeightManager makes manifests, receivers verify against them, Dataflow keeps them by number.
"""

from __future__ import annotations

from typing import Self

import msgspec

from astraflow.errors import DataError

WIRE_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
"""Bytes per element of each dtype that weights may have on the wire."""


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a version."""

    name: str
    """Its Hugging Face name."""
    shape: tuple[int, ...]
    dtype: str
    """A key of WIRE_DTYPES."""
    offset: int
    """First byte in the version's buffer."""
    nbytes: int
    digest: str
    """xxh3-128 of its bytes, 32 hex digits."""
    aliases: tuple[str, ...] = ()
    """Other names of the same storage (tied weights)."""


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """A fixed token sequence and how the trainer's model scores it: what an engine has to agree with (LAW 18)."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of tokens[1:], each given those before it; one less than tokens."""
    temperature: float = 1.0
    """The logits were divided by it."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a version is."""

    model_id: str
    version: int
    tensors: tuple[TensorEntry, ...]
    """In buffer order."""
    digest: str
    """xxh3-128 over names, shapes, dtypes and digests of the tensors, in order."""
    schema: int = 1
    base: int | None = None
    """The version a delta to this one starts from, where there is one."""
    base_digest: str | None = None
    delta_digest: str | None = None
    """xxh3-128 of the delta file."""
    restored: bool = False
    """Published by a trainer that came back, or after a batch that changed nothing: its bytes may be those of the
    version before."""
    canaries: tuple[Canary, ...] = ()
    """Not part of the digest: what the same bytes have to compute, where the trainer said so."""

    @property
    def nbytes(self) -> int:
        """Length of the full version's buffer."""
        return max((entry.offset + entry.nbytes for entry in self.tensors), default=0)

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding; None for weights without one."""
        return next((e.shape[0] for e in self.tensors if e.name.endswith("embed_tokens.weight")), None)

    def check(self) -> Self:
        if self.version < 0:
            raise DataError(f"manifest of {self.model_id}: version {self.version} is negative")
        for canary in self.canaries:
            if len(canary.logprobs) != len(canary.tokens) - 1:
                raise DataError(
                    f"manifest of {self.model_id}: a canary of {len(canary.tokens)} tokens has {len(canary.logprobs)} "
                    "logprobs"
                )
        names: set[str] = set()
        for entry in self.tensors:
            if entry.dtype not in WIRE_DTYPES:
                raise DataError(f"manifest of {self.model_id}: {entry.name} has unknown dtype {entry.dtype}")
            size = WIRE_DTYPES[entry.dtype]
            for n in entry.shape:
                size *= n
            if size != entry.nbytes or entry.offset < 0:
                raise DataError(
                    f"manifest of {self.model_id}: {entry.name} of shape {entry.shape} has {entry.nbytes} bytes at "
                    f"{entry.offset}, expected {size}"
                )
            for name in (entry.name, *entry.aliases):
                if name in names:
                    raise DataError(f"manifest of {self.model_id}: {name} is listed twice")
                names.add(name)
        return self
