"""Shared contexts change what is computed, and nothing that comes out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astraflow.core.model import Decoder, new_model, packed_attention, packed_positions
from astraflow.errors import DataError
from astraflow.train_worker.config import OptimizerConfig
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.engine.prefix import PrefixAttention, layout_of, prefix_lengths, same_prefix, units
from astraflow.train_worker.packed_rows import PackedRows

Rows = list[tuple[int, int]]
"""(which prompt, own tokens) of each row; prompt p has p + 1 tokens."""

DECODER = new_model("tiny-0.2m", seed=3).double()


def build(shape: Rows) -> PackedRows:
    generator = torch.Generator().manual_seed(sum(own for _, own in shape))
    ids, mask, lengths = [], [], []
    for prompt, own in shape:
        drawn = torch.randint(0, 100, (own,), generator=generator).tolist()
        ids += [prompt, *range(prompt)][: prompt + 1] + drawn
        mask += [False] * (prompt + 1) + [True] * own
        lengths.append(prompt + 1 + own)
    return PackedRows(torch.tensor(lengths), torch.tensor(ids), torch.tensor(mask)).check()


def hidden(decoder: Decoder, rows: PackedRows, shared: bool) -> torch.Tensor:
    if shared:
        layout = layout_of(rows)
        out: torch.Tensor = decoder(layout.input_ids, layout.positions, layout.attend)
        return out[layout.place]
    plain: torch.Tensor = decoder(rows.input_ids, packed_positions(rows.cu_seqlens), packed_attention(rows.cu_seqlens))
    return plain


def gradients(rows: PackedRows, shared: bool) -> list[torch.Tensor]:
    DECODER.zero_grad()
    weights = torch.linspace(-1, 1, len(rows.mask), dtype=torch.float64)[:, None] * rows.mask[:, None]
    (hidden(DECODER, rows, shared).square() * weights).sum().backward()
    return [p.grad.clone() for p in DECODER.parameters() if p.grad is not None]


shapes = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), min_size=1, max_size=7)


@settings(max_examples=40)
@given(shapes)
def test_hidden_states_and_gradients_are_those_of_single_rows(shape: Rows) -> None:
    rows = build([*shape, *shape[:1] * 3])  # three more of the first: something is shared
    torch.testing.assert_close(hidden(DECODER, rows, True), hidden(DECODER, rows, False), atol=1e-9, rtol=1e-9)
    for ours, plain in zip(gradients(rows, True), gradients(rows, False), strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-9, rtol=1e-7)


def test_a_group_is_computed_once() -> None:
    rows = build([(4, 2), (4, 3), (4, 2), (2, 5), (2, 5)])
    layout = layout_of(rows)
    assert isinstance(layout.attend, PrefixAttention)
    assert len(layout.input_ids) == 5 + 7 + 3 + 10
    assert torch.equal(layout.input_ids[layout.place], rows.input_ids)
    assert torch.equal(layout.positions[layout.place], packed_positions(rows.cu_seqlens))


def test_rows_that_share_little_are_computed_as_they_are() -> None:
    rows = build([(0, 9), (1, 9), (2, 9)])
    assert torch.equal(layout_of(rows).input_ids, rows.input_ids)


def test_a_context_ends_at_the_first_target_and_inside_the_row() -> None:
    rows = PackedRows(torch.tensor([3, 2]), torch.arange(5), torch.tensor([0, 1, 0, 0, 0]).bool())
    assert prefix_lengths(rows).tolist() == [1, 1]


def test_only_equal_contexts_are_one() -> None:
    rows = build([(3, 1), (2, 1), (3, 4), (2, 2)])
    assert same_prefix(rows) == [[0, 2], [1, 3]]


def test_units_hold_whole_groups_up_to_the_cap() -> None:
    rows = build([(3, 2), (3, 3), (3, 4), (1, 2)])
    assert units(rows, 100) == ([[0, 1, 2], [3]], [4 + 9, 2 + 2])
    assert units(rows, 9) == ([[0, 1], [2], [3]], [9, 8, 4])
    with pytest.raises(DataError, match="row 2 has 8 tokens"):
        units(rows, 7)


@settings(max_examples=40)
@given(shapes, st.integers(1, 4), st.integers(0, 30), st.sampled_from([0, 2, 40]))
@example([(3, 40)], 16, 120, 0)
def test_no_forward_pass_is_of_more_tokens_than_were_allowed(shape: Rows, times: int, room: int, longer: int) -> None:
    """Whatever is shared or not: `max_tokens_per_mb` bounds what the decoder is given."""
    rows = build([(prompt, own + longer) for prompt, own in shape] * times)
    most = int(rows.lengths.max()) + room
    decoder = new_model("tiny-0.2m", seed=3)
    passes: list[int] = []
    decoder.register_forward_pre_hook(lambda module, inputs: passes.append(len(inputs[0])))
    NativeEngine(decoder, OptimizerConfig(), 1, max_tokens_per_mb=most).forward(rows)
    assert max(passes) <= most
    assert sum(passes) <= len(rows.mask)
