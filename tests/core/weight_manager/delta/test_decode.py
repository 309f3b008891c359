"""What is not a delta, or not this one, is refused before anything is believed; the committed vectors stay readable."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from astraflow.core.data import Manifest
from astraflow.core.weight_manager.delta import SCHEMA, DeltaReader, EncodedDelta, encode_delta
from astraflow.core.weight_manager.digest import build_manifest
from astraflow.core.weight_manager.layout import buffer_length, lay_out
from astraflow.errors import WeightError

VECTORS = Path(__file__).parent / "vectors"
LAYOUT = lay_out([("w", (300,), "bfloat16"), ("dense", (4,), "float32"), ("b", (3,), "float8_e4m3fn")])


def pair() -> tuple[Manifest, Manifest, EncodedDelta]:
    before = bytearray(buffer_length(LAYOUT))
    after = bytearray(before)
    np.frombuffer(after, np.uint16, 300)[[0, 7, 299]] = [0x3F80, 0xBF80, 0x7FC0]
    np.frombuffer(after, np.float32, 4, LAYOUT[1].offset)[:] = 2
    after[LAYOUT[2].offset + 1] = 0xFF
    base = build_manifest("model0", 4, LAYOUT, memoryview(before))
    target = build_manifest("model0", 5, LAYOUT, memoryview(after))
    delta = encode_delta(base, target, memoryview(before), memoryview(after))
    assert delta is not None
    return base, target, delta


def read(data: bytes) -> DeltaReader:
    reader = DeltaReader(memoryview(data))
    list(reader.changes())
    return reader


def test_safetensors_reads_the_file(tmp_path: Path) -> None:
    base, target, delta = pair()
    (tmp_path / "delta.safetensors").write_bytes(b"".join(delta.parts))
    with safe_open(tmp_path / "delta.safetensors", "numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    assert metadata == {
        "schema": SCHEMA,
        "model_id": "model0",
        "base_version": "4",
        "base_digest": base.digest,
        "version": "5",
        "digest": target.digest,
    }
    assert tensors["full"].tobytes() == np.full(4, 2, np.float32).tobytes()


def test_a_delta_is_refused_on_another_base_or_for_another_version() -> None:
    base, target, delta = pair()
    reader = read(b"".join(delta.parts))
    reader.check(4, base.digest, target)
    for version, digest in ((3, base.digest), (4, "0" * 32)):
        with pytest.raises(WeightError, match="is refused: the engine holds version"):
            reader.check(version, digest, target)
    for other in (
        msgspec.structs.replace(target, version=6),
        msgspec.structs.replace(target, digest="0" * 32),
        msgspec.structs.replace(target, model_id="model1"),
    ):
        with pytest.raises(WeightError, match="was taken for version"):
            reader.check(4, base.digest, other)
    with pytest.raises(WeightError, match="lists other tensors"):
        reader.check(4, base.digest, msgspec.structs.replace(target, tensors=target.tensors[:2]))


@given(st.data())
def test_every_cut_is_refused(data: st.DataObject) -> None:
    whole = b"".join(pair()[2].parts)
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WeightError):
        read(whole[:length])


@given(st.integers(0, 2**31), st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_leads_to_another_result(place: int, bit: int) -> None:
    """The file's digest finds all of them; this shows that reading one does no harm meanwhile."""
    whole = bytearray(b"".join(pair()[2].parts))
    whole[place % len(whole)] ^= 1 << bit
    try:
        reader = DeltaReader(memoryview(whole))
        for change in reader.changes():
            if change.positions is not None:
                assert change.positions.min() >= 0
                assert len(change.positions) == len(change.values)
    except WeightError:
        pass


def test_other_schemas_and_nonsense_are_named() -> None:
    whole = b"".join(pair()[2].parts)
    with pytest.raises(WeightError, match="astraflow-delta-9"):
        read(whole.replace(b"astraflow-delta-1", b"astraflow-delta-9"))
    with pytest.raises(WeightError, match="cut short"):
        read(b"")
    with pytest.raises(WeightError, match="says that its header has"):
        read(b"\xff" * 64)


@pytest.mark.parametrize("name", sorted(path.stem for path in VECTORS.glob("*.json")))
def test_vectors(name: str) -> None:
    """Files written when the format was fixed: each still makes its target of its base (docs/delta-format.md)."""
    vector = json.loads((VECTORS / f"{name}.json").read_text("utf-8"))
    layout = lay_out([(t["name"], tuple(t["shape"]), t["dtype"]) for t in vector["tensors"]])
    held = bytearray(buffer_length(layout))
    after = bytearray(held)
    for entry, tensor in zip(layout, vector["tensors"], strict=True):
        held[entry.offset : entry.offset + entry.nbytes] = bytes.fromhex(tensor["before"])
        after[entry.offset : entry.offset + entry.nbytes] = bytes.fromhex(tensor["after"])
    base = build_manifest(vector["model_id"], vector["base_version"], layout, memoryview(held))
    target = build_manifest(vector["model_id"], vector["version"], layout, memoryview(after))
    assert (base.digest, target.digest) == (vector["base_digest"], vector["digest"])
    reader = DeltaReader(memoryview((VECTORS / f"{name}.safetensors").read_bytes()))
    reader.check(base.version, base.digest, target)
    for change in reader.changes():
        entry = target.tensors[change.index]
        view = np.frombuffer(held, change.values.dtype, entry.nbytes // change.values.itemsize, entry.offset)
        view[slice(None) if change.positions is None else change.positions] = change.values
    assert held == after


def test_there_are_vectors() -> None:
    assert len(list(VECTORS.glob("*.json"))) >= 5
