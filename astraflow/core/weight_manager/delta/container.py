"""The file around a delta: safetensors, written and read here so that its bytes are the same everywhere.

    u64 length of the header | header: JSON, padded with spaces to 8 bytes | the tensors' bytes, without holes

All tensors are one-dimensional and U8. The metadata says which version the file makes of which.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import msgspec

from astraflow.core.data import Manifest
from astraflow.errors import WeightError

SCHEMA = "astraflow-delta-1"
HEADER_MAX = 2**20
"""Bytes: the header names a dozen tensors; more is not a delta."""
_LENGTH = struct.Struct("<Q")


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a delta file; numbers travel as decimal strings, as safetensors asks."""

    model_id: str
    base_version: int
    base_digest: str
    """Total digest of the version that this delta applies to; of no other."""
    version: int
    digest: str
    """Total digest of the version that it makes."""
    schema: str = SCHEMA

    @classmethod
    def between(cls, base: Manifest, target: Manifest) -> Header:
        return cls(
            model_id=target.model_id,
            base_version=base.version,
            base_digest=base.digest,
            version=target.version,
            digest=target.digest,
        )


def write_container(header: Header, tensors: Mapping[str, Sequence[bytes]]) -> list[bytes]:
    """The file's parts, in order. `tensors`: name → its bytes in parts."""
    fields: dict[str, object] = {
        "__metadata__": {name: str(value) for name, value in msgspec.structs.asdict(header).items()}
    }
    offset = 0
    for name, parts in tensors.items():
        length = sum(map(len, parts))
        fields[name] = {"dtype": "U8", "shape": [length], "data_offsets": [offset, offset + length]}
        offset += length
    text = msgspec.json.encode(fields)
    text += b" " * (-len(text) % 8)
    return [_LENGTH.pack(len(text)), text, *(part for parts in tensors.values() for part in parts)]


def read_container(file: memoryview) -> tuple[Header, dict[str, memoryview]]:
    """Header and tensors of a delta file. WeightError: it is cut, malformed or of another schema."""
    if len(file) < _LENGTH.size:
        raise WeightError(f"a delta file of {len(file)} bytes is cut short")
    (length,) = _LENGTH.unpack_from(file)
    if not 0 < length <= min(HEADER_MAX, len(file) - _LENGTH.size):
        raise WeightError(f"a delta file of {len(file)} bytes says that its header has {length}")
    data = file[_LENGTH.size + length :]
    try:
        fields = msgspec.json.decode(file[_LENGTH.size : _LENGTH.size + length], type=dict[str, dict[str, object]])
        header = msgspec.convert(fields.pop("__metadata__", {}), Header, strict=False)
        spans = {name: msgspec.convert(field, _Span) for name, field in fields.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeightError(f"the header of a delta file: {error}") from error
    if header.schema != SCHEMA:
        raise WeightError(f"a delta of schema {header.schema}; known here: {SCHEMA}")
    expected = 0
    for name, span in sorted(spans.items(), key=lambda item: item[1].data_offsets):
        begin, end = span.data_offsets
        if span.dtype != "U8" or begin != expected or end < begin or span.shape != (end - begin,):
            raise WeightError(f"tensor {name} of a delta file is malformed: {span}")
        expected = end
    if expected != len(data):
        raise WeightError(f"a delta file has {len(data)} bytes of tensors, its header speaks of {expected}")
    return header, {name: data[span.data_offsets[0] : span.data_offsets[1]] for name, span in spans.items()}


class _Span(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]
