"""The single-process engine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from astraflow.core.model import load_model, new_model
from astraflow.core.text.tiny import tiny_tokenizer
from astraflow.errors import DataError, InvariantError, WeightError
from astraflow.train_worker.algorithms.aggregation import token_weights
from astraflow.train_worker.checkpoint import TrainerProgress, load_state, save_state
from astraflow.train_worker.config import OptimizerConfig
from astraflow.train_worker.engine.native import NativeEngine
from astraflow.train_worker.packed_rows import PackedRows


def rows_of(lengths: list[int], seed: int = 1) -> PackedRows:
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    rows = PackedRows(
        torch.tensor(lengths), torch.randint(0, 60, (total,), generator=generator), torch.ones(total, dtype=torch.bool)
    )
    rows.mask[rows.cu_seqlens[:-1]] = False
    return rows.check()


def nll(part: PackedRows, outputs: object) -> torch.Tensor:
    return -outputs.logprobs  # type: ignore[attr-defined]


def engine(**options: object) -> NativeEngine:
    config = OptimizerConfig(lr=3e-3)
    return NativeEngine(new_model("tiny-0.2m", seed=1), config, 10, **options)  # type: ignore[arg-type]


def test_training_lowers_the_loss() -> None:
    rows, native = rows_of([6, 4, 9]), engine()
    weights = token_weights(rows.mask, rows.cu_seqlens)
    losses = [native.train_step(rows, weights, nll).loss for _ in range(10)]
    assert losses[0] == pytest.approx(4.6, abs=0.2)
    assert losses[-1] < losses[0] - 1


def test_outputs_are_of_the_policy_before_the_step() -> None:
    rows, native = rows_of([6, 4]), engine(max_tokens_per_mb=6)
    before = native.forward(rows)
    result = native.train_step(rows, token_weights(rows.mask, rows.cu_seqlens), nll)
    torch.testing.assert_close(result.outputs.logprobs, before.logprobs, atol=1e-5, rtol=1e-5)
    assert not result.outputs.logprobs[~rows.mask].any()
    assert not result.outputs.entropy[~rows.mask].any()
    assert (native.forward(rows).logprobs - before.logprobs).abs().max() > 0


def test_a_row_past_the_models_positions_is_refused() -> None:
    with pytest.raises(DataError, match="1024 positions"):
        engine().forward(rows_of([1025]))


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    rows = rows_of([8])
    rows.input_ids[3] = token
    with pytest.raises(DataError, match=r"rows have token ids from .* to .*; the model's vocabulary has \d+"):
        engine().forward(rows)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    rows, native = rows_of([6]), engine()
    before = [tensor.clone() for _, tensor in native.named_weights()]
    for _ in range(4):
        assert native.train_step(rows, torch.full((6,), torch.inf), nll).skipped
    with pytest.raises(InvariantError, match="optimiser step 4, and was not finite at the 4 before"):
        native.train_step(rows, torch.full((6,), torch.inf), nll)
    assert all(torch.equal(a, b) for a, (_, b) in zip(before, native.named_weights(), strict=True))


def test_a_finite_gradient_begins_the_count_of_skipped_steps_anew() -> None:
    rows, native = rows_of([6]), engine()
    for _ in range(3):
        for _ in range(4):
            assert native.train_step(rows, torch.full((6,), torch.inf), nll).skipped
        result = native.train_step(rows, torch.ones(6), nll)
        assert not result.skipped
        assert math.isfinite(result.grad_norm)


def test_saved_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    native = engine()
    for _ in range(2):  # the second replaces the first
        native.save(tmp_path / "model", tiny_tokenizer())
    decoder, _ = load_model(tmp_path / "model")
    loaded = dict(decoder.named_parameters())
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in native.named_weights())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_bfloat16_model_learns_through_float32_masters() -> None:
    rows = rows_of([6, 4, 9])
    decoder = new_model("tiny-0.2m", seed=1).to(torch.bfloat16)
    native = NativeEngine(decoder, OptimizerConfig(lr=1e-5), 40, max_tokens_per_mb=9)
    weights = token_weights(rows.mask, rows.cu_seqlens)
    start = {name: tensor.clone() for name, tensor in native.named_weights()}
    losses = [native.train_step(rows, weights, nll).loss for _ in range(40)]
    assert losses[-1] < losses[0]
    # single updates of 1e-5 are below bfloat16's resolution of most weights; only masters add them up
    moved = sum(int((start[name] != tensor).sum()) for name, tensor in native.named_weights())
    assert moved > 0
    assert decoder.model.embed_tokens.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_going_on_from_a_state_gives_the_same_bits_as_never_stopping(tmp_path: Path, dtype: torch.dtype) -> None:
    def make() -> NativeEngine:
        config = OptimizerConfig(lr=3e-3, lr_scheduler_type="linear", warmup_steps=3)
        return NativeEngine(new_model("tiny-0.2m", seed=1).to(dtype), config, 6)

    def train(native: NativeEngine, seeds: range) -> None:
        for seed in seeds:
            rows = rows_of([6, 4, 9], seed)
            native.train_step(rows, token_weights(rows.mask, rows.cu_seqlens), nll)

    whole, first, second = make(), make(), make()
    train(whole, range(6))
    train(first, range(3))
    save_state(tmp_path, first.state(), TrainerProgress(3, 3))
    drawn = torch.rand(3)
    found = load_state(tmp_path)
    assert found is not None
    second.restore(found[0])
    assert torch.equal(torch.rand(3), drawn)
    train(second, range(3, 6))
    pairs = zip(whole.named_weights(), second.named_weights(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def test_a_state_of_another_model_is_refused() -> None:
    state = engine().state()
    with pytest.raises(WeightError, match="another model"):
        NativeEngine(new_model("tiny-1m", seed=1), OptimizerConfig(), 10).restore(state)
    state["optimizer.7.exp_avg"] = torch.zeros(3)
    with pytest.raises(WeightError, match="parameter 7"):
        engine().restore(state)
