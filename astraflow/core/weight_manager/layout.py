"""Where each tensor lies in a version's buffer: in order, each at a multiple of 64 bytes (any vector width)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.data.manifest import WIRE_DTYPES
from astraflow.errors import WeightError

ALIGNMENT = 64


def lay_out(
    tensors: Iterable[tuple[str, tuple[int, ...], str]], aliases: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[TensorEntry, ...]:
    """Place (name, shape, wire dtype) one after the other; digests are empty until a version is published.

    `aliases` maps a listed name to the other names of its storage. WeightError: an unknown dtype, a name listed
    twice, an alias of a tensor that is not listed.
    """
    left = dict(aliases or {})
    entries = []
    offset = 0
    for name, shape, dtype in tensors:
        if dtype not in WIRE_DTYPES:
            raise WeightError(f"{name} has dtype {dtype}; weights travel as {', '.join(sorted(WIRE_DTYPES))}")
        nbytes = prod(shape) * WIRE_DTYPES[dtype]
        entries.append(
            TensorEntry(
                name=name,
                shape=tuple(shape),
                dtype=dtype,
                offset=offset,
                nbytes=nbytes,
                digest="",
                aliases=tuple(left.pop(name, ())),
            )
        )
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    if left:
        raise WeightError(f"aliases are given for {', '.join(sorted(left))}, which is not among the tensors")
    names = [name for entry in entries for name in (entry.name, *entry.aliases)]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise WeightError(f"named twice among tensors and aliases: {', '.join(twice)}")
    return tuple(entries)


def buffer_length(layout: Iterable[TensorEntry]) -> int:
    """Bytes of one full version."""
    return max((entry.offset + entry.nbytes for entry in layout), default=0)


def match_names(names: Iterable[str], manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """For each manifest tensor, the engine's names of it (its own or aliases), in manifest order.

    WeightError where an engine's tensor belongs to no entry (it would silently keep old weights) or an entry has no
    tensor in the engine.
    """
    known = set(names)
    matched = {
        entry.name: tuple(name for name in (entry.name, *entry.aliases) if name in known) for entry in manifest.tensors
    }
    lacking = [name for name, found in matched.items() if not found]
    if lacking:
        raise WeightError(
            f"the engine has no tensor {lacking[0]} ({len(lacking)} of version {manifest.version} lack one)"
        )
    uncovered = sorted(known - {name for found in matched.values() for name in found})
    if uncovered:
        raise WeightError(
            f"version {manifest.version} says nothing of the engine's {uncovered[0]} ({len(uncovered)} such tensors)"
        )
    return matched
