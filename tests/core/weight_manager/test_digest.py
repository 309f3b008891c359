from __future__ import annotations

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import Manifest
from astraflow.core.weight_manager.digest import (
    build_manifest,
    check_manifest,
    differing,
    parts_digest,
    tensor_digest,
    total_digest,
)
from astraflow.core.weight_manager.layout import buffer_length, lay_out
from astraflow.errors import WeightError

LAYOUT = lay_out([("a", (2, 3), "float32"), ("b", (0,), "bfloat16"), ("c", (), "float16")])


def manifest(seed: int = 0, version: int = 1) -> Manifest:
    data = np.random.default_rng(seed).bytes(buffer_length(LAYOUT))
    return build_manifest("model0", version, LAYOUT, memoryview(data))


def test_a_tensor_digest_is_xxh3_128() -> None:
    """The published test vector of XXH3_128bits for no input."""
    assert tensor_digest(b"") == "99aa06d3014798d86001c324468d497f"


@given(st.binary(max_size=300), st.integers(0, 300))
def test_parts_digest_as_the_whole(data: bytes, at: int) -> None:
    assert parts_digest([data[:at], data[at:]]) == tensor_digest(data)


def test_the_total_can_be_computed_by_anybody() -> None:
    lines = b'["a",[2,3],"float32","x"]\n["b",[0],"bfloat16","y"]\n["c",[],"float16","z"]\n'
    assert total_digest(LAYOUT, ["x", "y", "z"]) == xxhash.xxh3_128_hexdigest(lines)


def test_a_manifest_lists_each_tensor_where_it_lies() -> None:
    data = bytes(range(70)) + bytes(70)
    made = build_manifest("model0", 5, LAYOUT, memoryview(data))
    assert (made.model_id, made.version) == ("model0", 5)
    assert [entry.digest for entry in made.tensors] == [tensor_digest(p) for p in (data[:24], b"", data[64:66])]
    check_manifest(made)


def test_equal_content_has_one_digest_whatever_its_number() -> None:
    assert manifest(version=1).digest == manifest(version=2).digest
    assert manifest(seed=1).digest != manifest(seed=2).digest


@pytest.mark.parametrize("field", [{"name": "z"}, {"shape": (3, 2)}, {"dtype": "bfloat16"}, {"digest": "0" * 32}])
def test_a_changed_entry_is_not_the_manifest_any_more(field: dict[str, object]) -> None:
    made = manifest()
    forged = msgspec.structs.replace(made.tensors[0], **field)
    with pytest.raises(WeightError, match="total digest"):
        check_manifest(msgspec.structs.replace(made, tensors=(forged, *made.tensors[1:])))


def test_differing_names_the_tensors() -> None:
    made = manifest()
    digests = [entry.digest for entry in made.tensors]
    assert differing(made, digests) == []
    assert differing(made, [digests[0], "x", "y"]) == ["b", "c"]
