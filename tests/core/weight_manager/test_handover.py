from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astraflow.core.data import Manifest
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.handover import BufferHandover, digest_of, handover_for
from astraflow.core.weight_manager.layout import buffer_length, lay_out
from astraflow.errors import WeightError

LAYOUT = lay_out([("a", (4,), "float32"), ("b", (3,), "bfloat16"), ("none", (0,), "float32")], {"a": ("tied",)})


def version(seed: int) -> tuple[Manifest, bytearray]:
    data = bytearray(np.random.default_rng(seed).bytes(buffer_length(LAYOUT)))
    return build_manifest("model0", seed, LAYOUT, memoryview(data)), data


def engine() -> dict[str, np.ndarray]:
    return {"a": np.arange(4, dtype=np.float32), "b": np.arange(3, dtype=np.uint16), "none": np.zeros(0, np.float32)}


def test_apply_puts_a_version_in_place_and_rollback_takes_it_back() -> None:
    manifest, data = version(1)
    weights, before = engine(), engine()
    handover = handover_for(weights)
    assert digest_of(weights, manifest) != manifest.digest
    handover.apply(manifest, memoryview(data))
    assert digest_of(weights, manifest) == manifest.digest
    assert weights["a"].tobytes() != before["a"].tobytes()
    handover.rollback()
    for name in before:
        assert weights[name].tobytes() == before[name].tobytes()
    handover.rollback()  # once: nothing is left to undo
    assert weights["a"].tobytes() == before["a"].tobytes()


def test_an_alias_with_a_storage_of_its_own_is_filled_proven_and_undone() -> None:
    manifest, data = version(1)
    weights = {**engine(), "tied": np.full(4, 9, np.float32)}
    handover = BufferHandover(weights)
    handover.apply(manifest, memoryview(data))
    assert weights["tied"].tobytes() == weights["a"].tobytes()
    assert digest_of(weights, manifest) == manifest.digest
    weights["tied"].view(np.uint8)[0] ^= 1
    assert digest_of(weights, manifest) != manifest.digest
    weights["tied"].view(np.uint8)[0] ^= 1
    handover.rollback()
    assert weights["tied"].tolist() == [9, 9, 9, 9]
    assert weights["a"].tolist() == [0, 1, 2, 3]


def test_what_does_not_fit_is_refused_before_anything_changes() -> None:
    manifest, data = version(1)
    spoilt: list[dict[str, Any]] = [
        {"b": np.zeros(4, np.uint16)},
        {"b": np.zeros(3, np.uint16).tobytes()},
        {"extra": np.zeros(1)},
    ]
    for wrong in spoilt:
        weights = {**engine(), **wrong}
        with pytest.raises(WeightError, match=next(iter(wrong))):
            handover_for(weights).apply(manifest, memoryview(data))
        assert weights["a"].tolist() == [0, 1, 2, 3]


def test_an_engines_own_handover_is_taken_as_it_is() -> None:
    own = BufferHandover(engine())
    assert handover_for(own) is own
