"""msgpack with typed arrays: an array travels as {dtype, shape, bytes} and arrives read-only, without a copy.

Decoding is typed and bounded: a body that does not fit its type is a DataError that names the field, never a half-read
record. Object arrays and unknown dtypes are refused, so nothing on the wire can run code.
"""

from __future__ import annotations

from math import prod
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np

from astraflow.errors import DataError

T = TypeVar("T")

ARRAY_DTYPES = frozenset(
    {"bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"}
)

_NAMES = {np.dtype(name): name for name in ARRAY_DTYPES}  # dtype.name is computed at each call


class WireArray(msgspec.Struct):
    """How an array travels: little-endian, in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = msgspec.field(name="bytes")


def _to_wire(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        name = _NAMES.get(value.dtype)
        if name is None:
            raise DataError(f"an array of dtype {value.dtype} cannot travel; known: {', '.join(sorted(ARRAY_DTYPES))}")
        data = np.ascontiguousarray(value).data.cast("B") if value.size else b""
        return {"dtype": name, "shape": value.shape, "bytes": data}
    if isinstance(value, np.generic):
        return value.item()
    raise DataError(f"a {type(value).__name__} cannot travel")


def _from_wire(kind: type, value: Any) -> Any:
    if kind is not np.ndarray:
        raise NotImplementedError(kind)
    try:
        wire = msgspec.convert(value, WireArray)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error  # decode adds the path to a ValueError
    if wire.dtype not in ARRAY_DTYPES:
        raise ValueError(f"array dtype '{wire.dtype}' is not one of {', '.join(sorted(ARRAY_DTYPES))}")
    if any(n < 0 for n in wire.shape) or prod(wire.shape) * np.dtype(wire.dtype).itemsize != len(wire.data):
        raise ValueError(f"array of shape {wire.shape} and dtype {wire.dtype} has {len(wire.data)} bytes")
    return np.frombuffer(wire.data, wire.dtype).reshape(wire.shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_wire)
_DECODERS: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(record: Any) -> bytes:
    """Return the msgpack body of a record. DataError if it holds something that cannot travel."""
    return _ENCODER.encode(record)


def decode(body: bytes, kind: type[T]) -> T:
    """Return the record of type `kind` in `body`, checked field by field (DataError names the path)."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.msgpack.Decoder(kind, dec_hook=_from_wire)
    try:
        record: T = decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        name = getattr(kind, "__name__", None) or " or ".join(each.__name__ for each in get_args(kind))
        raise DataError(f"not a valid {name}: {error}") from error
    check = getattr(record, "check", None)
    if check is not None:
        check()
    return record
