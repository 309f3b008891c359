from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import Manifest
from astraflow.core.data.manifest import WIRE_DTYPES
from astraflow.core.weight_manager.layout import ALIGNMENT, buffer_length, lay_out, match_names
from astraflow.errors import WeightError

shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@given(st.lists(st.tuples(shapes, st.sampled_from(sorted(WIRE_DTYPES))), max_size=6))
def test_tensors_lie_aligned_and_apart(tensors: list[tuple[tuple[int, ...], str]]) -> None:
    layout = lay_out([(str(i), shape, dtype) for i, (shape, dtype) in enumerate(tensors)])
    end = 0
    for entry in layout:
        assert entry.offset % ALIGNMENT == 0
        assert entry.offset >= end
        end = entry.offset + entry.nbytes
    assert buffer_length(layout) >= end
    Manifest(model_id="m", version=0, tensors=layout, digest="").check()


@pytest.mark.parametrize(
    ("tensors", "aliases", "words"),
    [
        ([("a", (1,), "int32")], {}, "a has dtype int32; weights travel as bfloat16"),
        ([("a", (1,), "float32"), ("a", (1,), "float32")], {}, "named twice among tensors and aliases: a"),
        ([("a", (1,), "float32"), ("b", (1,), "float32")], {"a": ("b",)}, "named twice among tensors and aliases: b"),
        ([("a", (1,), "float32")], {"x": ("y",)}, "aliases are given for x, which is not among the tensors"),
    ],
)
def test_a_wrong_layout_says_what_is_wrong(
    tensors: list[tuple[str, tuple[int, ...], str]], aliases: dict[str, tuple[str, ...]], words: str
) -> None:
    with pytest.raises(WeightError, match=words):
        lay_out(tensors, aliases)


def test_an_engine_must_have_every_tensor_and_nothing_more() -> None:
    layout = lay_out([("embed", (1,), "float32"), ("norm", (1,), "float32")], {"embed": ("head",)})
    manifest = Manifest(model_id="m", version=3, tensors=layout, digest="")
    assert match_names(["norm", "head"], manifest) == {"embed": ("head",), "norm": ("norm",)}
    assert match_names(["norm", "head", "embed"], manifest)["embed"] == ("embed", "head")
    with pytest.raises(WeightError, match=r"the engine has no tensor embed \(1 of version 3 lack one\)"):
        match_names(["norm"], manifest)
    with pytest.raises(WeightError, match=r"version 3 says nothing of the engine's bias"):
        match_names(["norm", "embed", "bias"], manifest)
