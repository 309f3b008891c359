from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import Manifest
from astraflow.core.weight_manager import tensors
from astraflow.core.weight_manager.digest import build_manifest, tensor_digest
from astraflow.core.weight_manager.handover import digest_of
from astraflow.core.weight_manager.layout import buffer_length
from astraflow.core.weight_manager.tensors import (
    CONTAINED_IN,
    TORCH_DTYPES,
    TensorHandover,
    WireBuffer,
    describe,
    wire_digest,
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
