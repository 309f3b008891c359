from __future__ import annotations

import numpy as np
import pytest

from astraflow.core.data import Canary, Manifest
from astraflow.core.weight_manager.canary import canary_gap, canary_tokens, tolerance
from astraflow.core.weight_manager.layout import lay_out
from astraflow.errors import DataError, WeightError

CANARIES = [Canary(tokens=(1, 2, 3), logprobs=(-1.0, -2.0)), Canary(tokens=(4, 5), logprobs=(-4.0,))]


def manifest(*dtypes: str, canaries: tuple[Canary, ...] = ()) -> Manifest:
    layout = lay_out([(f"t{i}", (1,), dtype) for i, dtype in enumerate(dtypes)])
    return Manifest(model_id="m", version=0, tensors=layout, digest="", canaries=canaries)


def test_canaries_never_change_and_spread_over_the_vocabulary() -> None:
    assert canary_tokens(49_152) == canary_tokens(49_152)
    ids = np.concatenate([np.array(tokens) for tokens in canary_tokens(49_152)])
    assert ids.min() < 5_000
    assert ids.max() > 44_000
    assert {len(tokens) for tokens in canary_tokens(7)} == {12}


def test_the_gap_is_the_mean_over_all_tokens() -> None:
    assert canary_gap(CANARIES, [np.array([-1.0, -2.0]), np.array([-4.0])]) == 0
    assert canary_gap(CANARIES, [np.array([-1.0, -2.5]), np.array([-3.0])]) == pytest.approx(0.5)


def test_what_is_no_number_agrees_with_nothing() -> None:
    assert canary_gap(CANARIES, [np.array([-1.0, np.nan]), np.array([-4.0])]) == float("inf")


def test_an_engine_that_scored_something_else_is_refused() -> None:
    with pytest.raises(WeightError, match="scored 2 tokens of canaries that have 3"):
        canary_gap(CANARIES, [np.array([-1.0, -2.0])])


def test_the_coarsest_dtype_decides() -> None:
    assert tolerance(manifest("float32")) < tolerance(manifest("float16"))
    assert tolerance(manifest("float32", "bfloat16")) == tolerance(manifest("bfloat16"))


def test_a_canary_has_a_logprob_for_every_token_but_the_first() -> None:
    manifest("float32", canaries=(CANARIES[0],)).check()
    with pytest.raises(DataError, match="a canary of 2 tokens has 2 logprobs"):
        manifest("float32", canaries=(Canary(tokens=(1, 2), logprobs=(0.0, 0.0)),)).check()
