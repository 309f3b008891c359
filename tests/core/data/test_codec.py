from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import decode, encode
from astraflow.core.data.codec import ARRAY_DTYPES
from astraflow.errors import DataError


class Box(msgspec.Struct):
    array: np.ndarray
    name: str = ""


@pytest.mark.parametrize("dtype", sorted(ARRAY_DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_arrays_arrive_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(dtype)
    back = decode(encode(Box(array)), Box).array
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_non_contiguous_arrays_travel_by_value() -> None:
    array = np.arange(12).reshape(3, 4)[:, ::2]
    assert (decode(encode(Box(array)), Box).array == array).all()


def test_arrived_arrays_are_read_only() -> None:
    back = decode(encode(Box(np.zeros(3))), Box).array
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1


@pytest.mark.parametrize("value", [np.array([object()]), np.array(["a"]), np.zeros(2, np.complex64), object()])
def test_what_cannot_travel_is_refused(value: object) -> None:
    with pytest.raises(DataError, match="cannot travel"):
        encode({"x": value})


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ({"dtype": "object", "shape": [1], "bytes": b"12345678"}, "dtype 'object'"),
        ({"dtype": "float32", "shape": [3], "bytes": b"1234"}, "has 4 bytes"),
        ({"dtype": "float32", "shape": [-1], "bytes": b"1234"}, "has 4 bytes"),
        ({"dtype": "float32", "bytes": b"1234"}, "shape"),
        ([1, 2], "array"),
    ],
)
def test_a_broken_array_is_named_with_its_path(wire: object, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        decode(msgspec.msgpack.encode({"array": wire}), Box)
    assert "$.array" in str(caught.value)


@given(st.binary(max_size=200))
def test_garbage_is_a_data_error(body: bytes) -> None:
    try:
        decode(body, Box)
    except DataError:
        return


@pytest.mark.parametrize("body", [b"\x91" * 10**5 + b"\xc0", b"\x81\xa1a" * 10**5 + b"\xc0"])
def test_endless_nesting_is_a_data_error(body: bytes) -> None:
    with pytest.raises(DataError, match="not a valid Any"):
        decode(body, Any)
