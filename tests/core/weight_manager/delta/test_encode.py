"""A delta makes the target of its base, bit for bit, whatever the bits mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.data.manifest import WIRE_DTYPES
from astraflow.core.weight_manager.delta import DeltaReader, EncodedDelta, encode_delta
from astraflow.core.weight_manager.delta import encode as encode_module
from astraflow.core.weight_manager.delta.planes import UNSIGNED
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import buffer_length, lay_out
from astraflow.errors import WeightError

Layout = tuple[TensorEntry, ...]
SHAPES = [(), (0,), (1,), (3, 0, 5), (7,), (3, 5), (129,), (64, 33)]


def manifest(layout: Layout, buffer: bytearray, version: int) -> Manifest:
    return build_manifest("model0", version, layout, memoryview(buffer))


def apply(buffer: bytearray, target: Manifest, delta: EncodedDelta, base: Manifest) -> None:
    """An independent reading: plain loops over what the reader yields."""
    reader = DeltaReader(memoryview(b"".join(delta.parts)))
    reader.check(base.version, base.digest, target)
    for change in reader.changes():
        entry = target.tensors[change.index]
        size = WIRE_DTYPES[entry.dtype]
        numel = entry.nbytes // size
        positions = range(numel) if change.positions is None else change.positions.tolist()
        for position, value in zip(positions, change.values.tolist(), strict=True):
            place = entry.offset + position * size
            buffer[place : place + size] = int(value).to_bytes(size, "little")


def mutate(buffer: bytearray, layout: Layout, share: float, rng: np.random.Generator) -> bytearray:
    """Overwrite about `share` of the elements with any bits: NaN, infinities, -0 and denormals among them."""
    fresh = bytearray(buffer)
    for entry in layout:
        size = WIRE_DTYPES[entry.dtype]
        view = np.frombuffer(fresh, UNSIGNED[size], entry.nbytes // size, entry.offset)
        chosen = rng.random(len(view)) < share
        view[chosen] = rng.integers(0, 2 ** (8 * size), int(chosen.sum()), dtype=np.uint64).astype(UNSIGNED[size])
    return fresh


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    specs = draw(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(sorted(WIRE_DTYPES))), max_size=6))
    names = [f"layer.{i}" for i in range(len(specs))]
    aliases = {names[0]: ("tied",)} if names else {}
    return lay_out([(name, shape, dtype) for name, (shape, dtype) in zip(names, specs, strict=True)], aliases)


@given(layouts(), st.sampled_from([0.0, 0.01, 0.3, 0.49, 0.8, 1.0]), st.integers(0, 2**32 - 1))
def test_base_and_delta_are_the_target(layout: Layout, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = bytearray(rng.bytes(buffer_length(layout)))
    after = mutate(before, layout, share, rng)
    base, target = manifest(layout, before, 4), manifest(layout, after, 5)
    delta = encode_delta(base, target, memoryview(before), memoryview(after))
    assert delta is not None
    result = bytearray(before)
    for _ in range(2):  # twice is harmless
        apply(result, target, delta, base)
        assert manifest(layout, result, 5) == target


@pytest.mark.parametrize("dtype", sorted(WIRE_DTYPES))
def test_fifty_deltas_in_a_chain_are_the_last_version(dtype: str) -> None:
    """LAW 20, at the codec: full(v1) + v2 … v50 = full(v50)."""
    rng = np.random.default_rng(7)
    layout = lay_out([("a", (63, 17), dtype), ("b", (), dtype), ("c", (0,), dtype), ("d", (5,), dtype)], {"a": ("z",)})
    held = bytearray(rng.bytes(buffer_length(layout)))
    current, base = bytearray(held), manifest(layout, held, 1)
    for version in range(2, 51):
        fresh = mutate(current, layout, 0.05, rng)
        target = manifest(layout, fresh, version)
        delta = encode_delta(base, target, memoryview(current), memoryview(fresh))
        assert delta is not None
        apply(held, target, delta, base)
        current, base = fresh, target
    assert manifest(layout, held, 50) == base


@pytest.mark.parametrize("gap", [1, 2, 255, 256, 257, 65_535, 65_536, 65_537, 200_000])
def test_gaps_of_every_width(gap: int) -> None:
    layout = lay_out([("w", (700_001,), "bfloat16")])
    before = bytearray(buffer_length(layout))
    after = bytearray(before)
    np.frombuffer(after, np.uint16)[0::gap] = 0x3F80
    base, target = manifest(layout, before, 0), manifest(layout, after, 1)
    delta = encode_delta(base, target, memoryview(before), memoryview(after))
    assert delta is not None
    reader = DeltaReader(memoryview(b"".join(delta.parts)))
    found = [c.positions for c in reader.changes() if c.positions is not None]
    if gap > 1:
        assert np.array_equal(np.concatenate(found), np.arange(0, 700_001, gap))
        assert delta.changed == len(range(0, 700_001, gap))
    assert (delta.full, reader.changed) == ((1, 0) if gap == 1 else (0, delta.changed))


def test_a_tensor_longer_than_blocks_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_module, "CHUNK", 1024)
    monkeypatch.setattr(encode_module, "BLOCK", 100)
    rng = np.random.default_rng(3)
    layout = lay_out([("w", (301, 333), "float16"), ("x", (1001,), "float8_e5m2")])
    before = bytearray(rng.bytes(buffer_length(layout)))
    after = mutate(before, layout, 0.2, rng)
    base, target = manifest(layout, before, 0), manifest(layout, after, 1)
    delta = encode_delta(base, target, memoryview(before), memoryview(after))
    assert delta is not None
    apply(before, target, delta, base)
    assert manifest(layout, before, 1) == target


def test_the_cost_of_an_entry_is_about_its_entropy() -> None:
    """0.4% of bfloat16 elements, position and value of each independent: at most 2.6 bytes, 2.5 of them entropy."""
    rng = np.random.default_rng(0)
    layout = lay_out([("w", (4_000_000,), "bfloat16")])
    after = bytearray((rng.standard_normal(4_000_000, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes())
    before = bytearray(after)
    chosen = rng.random(4_000_000) < 0.004
    np.frombuffer(before, np.uint16)[chosen] ^= 1
    base, target = manifest(layout, before, 0), manifest(layout, after, 1)
    delta = encode_delta(base, target, memoryview(before), memoryview(after))
    assert delta is not None
    assert delta.length / delta.changed < 2.6


def test_dense_tensors_travel_whole_and_sparse_ones_do_not() -> None:
    layout = lay_out([("dense", (1000,), "float32"), ("sparse", (1000,), "float32")])
    before = bytearray(buffer_length(layout))
    after = bytearray(before)
    np.frombuffer(after, np.float32, 1000, layout[0].offset)[:] = 1
    np.frombuffer(after, np.float32, 1000, layout[1].offset)[3] = 1
    base, target = manifest(layout, before, 0), manifest(layout, after, 1)
    delta = encode_delta(base, target, memoryview(before), memoryview(after))
    assert delta is not None
    assert (delta.changed, delta.full) == (1, 1)


def test_a_delta_beyond_its_limit_or_on_a_base_that_goes_away_is_none() -> None:
    layout = lay_out([("w", (4096,), "bfloat16")])
    before = bytearray(buffer_length(layout))
    after = mutate(before, layout, 0.3, np.random.default_rng(1))
    base, target = manifest(layout, before, 0), manifest(layout, after, 1)
    assert encode_delta(base, target, memoryview(before), memoryview(after), limit=500) is None
    assert encode_delta(base, target, memoryview(before), memoryview(after), proceed=lambda: False) is None


def test_versions_of_other_tensors_have_no_delta() -> None:
    one, two = lay_out([("w", (4,), "bfloat16")]), lay_out([("w", (2, 2), "bfloat16")])
    base, target = manifest(one, bytearray(8), 0), manifest(two, bytearray(8), 1)
    with pytest.raises(WeightError, match=r"no delta from version 0 .* their tensors are not the same"):
        encode_delta(base, target, memoryview(bytearray(8)), memoryview(bytearray(8)))
