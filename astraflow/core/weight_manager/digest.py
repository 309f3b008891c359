"""What a version is: xxh3-128 of each tensor's bytes on the wire, and one digest over all of them.

The total depends on content only, not on model or number, so "the version moved, the digest did not" can be seen. It is
the xxh3-128 of one compact JSON line `[name,shape,dtype,digest]` and a newline per tensor, in manifest order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import xxhash

from astraflow.core.data import Manifest, TensorEntry
from astraflow.errors import WeightError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def tensor_digest(data: ReadableBuffer) -> str:
    """32 hex digits: xxh3-128 of a tensor's bytes."""
    return xxhash.xxh3_128_hexdigest(data)


def parts_digest(parts: Iterable[ReadableBuffer]) -> str:
    """The digest of a tensor whose bytes come in parts, in order."""
    hasher = xxhash.xxh3_128()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def total_digest(entries: Iterable[TensorEntry], digests: Iterable[str]) -> str:
    """32 hex digits over names, shapes, dtypes and the given per-tensor digests, in order."""
    return parts_digest(
        msgspec.json.encode([entry.name, entry.shape, entry.dtype, digest]) + b"\n"
        for entry, digest in zip(entries, digests, strict=True)
    )


def buffer_digests(entries: Iterable[TensorEntry], buffer: memoryview) -> tuple[str, ...]:
    """Digest each tensor where it lies in a version's buffer (bytes)."""
    return tuple(tensor_digest(buffer[entry.offset : entry.offset + entry.nbytes]) for entry in entries)


def build_manifest(model_id: str, version: int, layout: Sequence[TensorEntry], buffer: memoryview) -> Manifest:
    """Digest the version that lies in `buffer` as `layout` says and return its manifest."""
    digests = buffer_digests(layout, buffer)
    tensors = tuple(
        msgspec.structs.replace(entry, digest=digest) for entry, digest in zip(layout, digests, strict=True)
    )
    total = total_digest(layout, digests)
    return Manifest(model_id=model_id, version=version, tensors=tensors, digest=total).check()


def check_manifest(manifest: Manifest) -> None:
    """Raise WeightError unless the total digest is that of the tensors listed: manifests may be cut or mixed."""
    if total_digest(manifest.tensors, (entry.digest for entry in manifest.tensors)) != manifest.digest:
        raise WeightError(
            f"manifest of {manifest.model_id} version {manifest.version}: its total digest {manifest.digest} is not "
            "that of the tensors it lists"
        )


def differing(manifest: Manifest, digests: Iterable[str]) -> list[str]:
    """Names of the tensors whose digest is not the manifest's, in order."""
    return [entry.name for entry, digest in zip(manifest.tensors, digests, strict=True) if entry.digest != digest]


def describe_difference(names: Sequence[str], manifest: Manifest) -> str:
    """ "3 of 120 tensors, the first is model.norm.weight", for error messages."""
    return f"{len(names)} of {len(manifest.tensors)} tensors, the first is {names[0]}"
