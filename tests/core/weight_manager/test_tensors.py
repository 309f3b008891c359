from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import Manifest, TensorEntry
from astraflow.core.weight_manager import tensors
from astraflow.core.weight_manager.delta import Change, DeltaReader, encode_delta
from astraflow.core.weight_manager.digest import build_manifest, tensor_digest
from astraflow.core.weight_manager.handover import digest_of
from astraflow.core.weight_manager.layout import buffer_length, lay_out
from astraflow.core.weight_manager.tensors import (
    CONTAINED_IN,
    TORCH_DTYPES,
    TensorHandover,
    WireBuffer,
    describe,
    wire_digest,
    wire_view,
)
from astraflow.errors import WeightError

SHAPES = {"matrix": (37, 11), "vector": (5,), "scalar": (), "empty": (0, 3)}


def parameters(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def publish(params: dict[str, torch.Tensor], wire_dtype: str | None = None) -> tuple[Manifest, bytearray]:
    layout = describe(params, wire_dtype)
    data = bytearray(buffer_length(layout))
    WireBuffer(layout, memoryview(data)).write(params)
    return build_manifest("model0", 1, layout, memoryview(data)), data


PAIRS = [(wire, engine) for wire in TORCH_DTYPES for engine in (wire, *CONTAINED_IN[wire])]


@pytest.mark.parametrize(("wire", "engine"), PAIRS)
def test_every_value_of_the_wire_survives_the_engine(wire: str, engine: str) -> None:
    """The exactness rule, over every bit pattern (NaN aside) of the types that can be enumerated."""
    bits = TORCH_DTYPES[wire].itemsize * 8
    if bits == 32:
        patterns = torch.arange(-(2**31), 2**31, 65_521, dtype=torch.int64).to(torch.int32)
    else:
        patterns = torch.arange(2**bits).to({8: torch.uint8, 16: torch.int16}[bits])
    values = patterns.view(TORCH_DTYPES[wire])
    values = values[~values.float().isnan()]
    manifest, data = publish({"w": values})
    held = {"w": torch.zeros(len(values), dtype=TORCH_DTYPES[engine])}
    TensorHandover(held).apply(manifest, memoryview(data))
    assert digest_of(held, manifest) == manifest.digest


@pytest.mark.parametrize(
    ("wire", "engine"), [("float32", "bfloat16"), ("bfloat16", "float16"), ("float16", "bfloat16")]
)
def test_an_engine_that_would_round_is_refused(wire: str, engine: str) -> None:
    manifest, data = publish(parameters(0), wire)
    with pytest.raises(WeightError, match=f"{engine} in the engine, which cannot hold {wire} exactly"):
        TensorHandover(parameters(1, TORCH_DTYPES[engine])).apply(manifest, memoryview(data))


@pytest.mark.parametrize("chunk", [1, 7, 2**18])
@pytest.mark.parametrize("wire", ["float32", "bfloat16", "float16"])
def test_apply_then_rollback_restores_every_bit(wire: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the engine held values that the wire cannot carry (it never had a version before)."""
    monkeypatch.setattr(tensors, "CHUNK", chunk)
    params = parameters(1)
    manifest, data = publish(params, wire)
    engine, before = parameters(2), parameters(2)
    engine["vector"][:2] = before["vector"][:2] = torch.tensor([-0.0, float("nan")])
    handover = TensorHandover(engine)
    handover.apply(manifest, memoryview(data))
    for name in engine:
        assert torch.equal(engine[name], params[name].to(TORCH_DTYPES[wire]).float())
    handover.rollback()
    for name in engine:
        assert torch.equal(engine[name].view(torch.int32), before[name].view(torch.int32))


@given(st.permutations(range(3)), st.sampled_from(["float32", "bfloat16"]))
def test_strides_of_the_engine_do_not_matter(order: list[int], wire: str) -> None:
    value = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(3))
    manifest, data = publish({"w": value}, wire)
    back = [order.index(i) for i in range(3)]
    held = {"w": torch.zeros([value.shape[i] for i in order]).permute(back)}
    TensorHandover(held).apply(manifest, memoryview(data))
    assert torch.equal(held["w"], value.to(TORCH_DTYPES[wire]).float())
    assert digest_of(held, manifest) == manifest.digest


def test_a_digest_is_that_of_the_wire_bytes() -> None:
    value = torch.tensor([1.0, -2.0])
    assert wire_digest(value, "bfloat16") == tensor_digest(bytes.fromhex("803f00c0"))
    assert wire_digest(value, "float32") == tensor_digest(bytes.fromhex("0000803f000000c0"))
    assert wire_digest(torch.zeros(0), "float32") == tensor_digest(b"")


def test_parameters_keep_their_dtype_unless_one_is_named() -> None:
    params = {"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.bfloat16), "c": torch.zeros(2, dtype=torch.float64)}
    assert [entry.dtype for entry in describe(params, None)] == ["float32", "bfloat16", "float32"]
    assert {entry.dtype for entry in describe(params, "float16")} == {"float16"}


def test_what_cannot_be_published_is_refused() -> None:
    with pytest.raises(WeightError, match=r"steps has dtype torch.int64; weights travel as"):
        describe({"steps": torch.zeros(1, dtype=torch.int64)}, "float32")
    params = parameters(0)
    buffer = WireBuffer(describe(params, "float16"), memoryview(bytearray(4096)))
    with pytest.raises(WeightError, match="vector is missing in what is published"):
        buffer.write({name: param for name, param in params.items() if name != "vector"})
    with pytest.raises(WeightError, match=r"vector is of shape \(6,\) .* initialised as \(5,\)"):
        buffer.write({**params, "vector": torch.zeros(6)})
    with pytest.raises(WeightError, match="vector holds values that are not finite as float16"):
        buffer.write({**params, "vector": torch.full((5,), 1e6)})


def test_a_wrong_shape_in_the_engine_is_refused_before_anything_changes() -> None:
    manifest, data = publish(parameters(0))
    engine = {**parameters(1), "empty": torch.zeros(1, 3)}
    with pytest.raises(WeightError, match=r"empty has shape \(1, 3\) in the engine and \(0, 3\)"):
        TensorHandover(engine).apply(manifest, memoryview(data))
    assert torch.equal(engine["matrix"], parameters(1)["matrix"])


def test_parameters_that_need_gradients_can_be_published_and_overwritten() -> None:
    params = {"w": torch.nn.Parameter(torch.ones(3))}
    manifest, data = publish({"w": torch.nn.Parameter(torch.full((3,), 2.0))})
    TensorHandover(params).apply(manifest, memoryview(data))
    assert params["w"].tolist() == [2, 2, 2]
    assert params["w"].requires_grad


# ---- deltas ----------------------------------------------------------------------------------------------------------


def delta_between(
    before: bytearray, after: bytearray, layout: tuple[TensorEntry, ...]
) -> tuple[Manifest, list[Change]]:
    base = build_manifest("model0", 0, layout, memoryview(before))
    target = build_manifest("model0", 1, layout, memoryview(after))
    delta = encode_delta(base, target, memoryview(before), memoryview(after))
    assert delta is not None
    return target, list(DeltaReader(memoryview(b"".join(delta.parts))).changes())


ENGINES = {
    "same dtype": lambda wire: wire.clone(),
    "wider dtype": lambda wire: wire.float(),
    "strided": lambda wire: torch.zeros(5, 8, dtype=wire.dtype).t()[:, :5].copy_(wire),
}


@pytest.mark.parametrize("kind", sorted(ENGINES))
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_overwriting_elements_makes_the_version_and_is_undone(kind: str, share: float) -> None:
    layout = lay_out([("w", (8, 5), "bfloat16"), ("scalar", (), "bfloat16")])
    generator = torch.Generator().manual_seed(3)
    before, after = bytearray(buffer_length(layout)), bytearray(buffer_length(layout))
    old, new = ({e.name: wire_view(e, memoryview(b)) for e in layout} for b in (before, after))
    for entry in layout:
        old[entry.name].copy_(torch.randn(entry.shape, generator=generator))
        new[entry.name].copy_(old[entry.name])
    new["w"][torch.rand(8, 5, generator=generator) < share] = -0.0
    new["scalar"].fill_(float("inf"))
    target, changes = delta_between(before, after, layout)
    engine = {"w": ENGINES[kind](old["w"]), "scalar": old["scalar"].clone()}
    kept = {name: weight.clone() for name, weight in engine.items()}
    handover = TensorHandover(engine)
    handover.overwrite(target, changes)
    assert handover.digests(target) == tuple(entry.digest for entry in target.tensors)
    handover.rollback()
    for name, weight in engine.items():
        assert torch.equal(weight, kept[name])
        assert torch.equal(weight.signbit(), kept[name].signbit())


def test_a_delta_reaches_an_alias_with_a_storage_of_its_own() -> None:
    layout = lay_out([("embed", (4,), "float16")], {"embed": ("head",)})
    before, after = bytearray(8), bytearray(b"\0\0" * 3 + b"\0\x3c")
    target, changes = delta_between(before, after, layout)
    engine = {"embed": torch.zeros(4, dtype=torch.float16), "head": torch.zeros(4, dtype=torch.float16)}
    TensorHandover(engine).overwrite(target, changes)
    assert engine["head"].tolist() == engine["embed"].tolist() == [0, 0, 0, 1]


# ---- pinned memory: the calls are CUDA's, their effect was not measured on a GPU ------------------------------------


class FakeCudart:
    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.calls: list[tuple[object, ...]] = []

    def cudaHostRegister(self, *arguments: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("register", *arguments))
        return self.answer

    def cudaHostUnregister(self, *arguments: int) -> int:  # noqa: N802
        self.calls.append(("unregister", *arguments))
        return 0


@pytest.mark.parametrize("answer", [0, 2])
def test_pinning_covers_the_whole_half_and_is_undone_once(answer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cudart = FakeCudart(answer)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    layout = lay_out([("w", (100,), "float32")])
    memory = bytearray(buffer_length(layout))
    buffer = WireBuffer(layout, memoryview(memory))
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    if answer:
        with pytest.raises(WeightError, match="cannot be pinned for the GPU: CUDA error 2"):
            buffer.pin()
    else:
        buffer.pin()
    buffer.unpin()
    buffer.unpin()
    registered = [("register", address, 400, 0)]
    assert cudart.calls == (registered if answer else [*registered, ("unregister", address)])
