import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.observability.stats_tracker import Reduce, StatsTracker
from astraflow.errors import DataError


def test_a_mean_counts_its_mask_over_all_calls() -> None:
    tracker = StatsTracker()
    for mask, values in (([1, 1, 0], [1.0, 2.0, 9.0]), ([1, 0, 0], [6.0, 9.0, 9.0])):
        tracker.denominator(tokens=np.array(mask))
        tracker.stat("tokens", loss=np.array(values))
    assert tracker.export() == {"tokens": 3.0, "loss": 3.0}


@given(st.lists(st.tuples(st.floats(-10, 10), st.booleans()), min_size=1, max_size=20), st.integers(1, 19))
def test_the_value_does_not_depend_on_the_cut(rows: list[tuple[float, bool]], cut: int) -> None:
    """LAW 13, for what is shown."""

    def shown(parts: list[list[tuple[float, bool]]]) -> dict[str, float]:
        tracker = StatsTracker()
        for part in parts:
            tracker.denominator(tokens=np.array([mask for _, mask in part], bool))
            tracker.stat("tokens", "mean", "min", "max", "sum", x=np.array([value for value, _ in part]))
        return tracker.export()

    whole, cut_up = shown([rows]), shown([part for part in (rows[:cut], rows[cut:]) if part])
    assert whole.keys() == cut_up.keys()
    assert all(math.isclose(whole[name], cut_up[name], abs_tol=1e-9) for name in whole)


def test_several_reductions_have_names_of_their_own() -> None:
    tracker = StatsTracker()
    tracker.denominator(n=np.ones(3))
    tracker.stat("n", "min", Reduce.MAX, ratio=np.array([1.0, 2.0, 3.0]))
    assert tracker.export() == {"n": 3.0, "ratio/min": 1.0, "ratio/max": 3.0}


def test_scopes_prefix_names_and_find_outer_masks() -> None:
    tracker = StatsTracker()
    with tracker.scope("ppo"):
        tracker.denominator(tokens=np.ones(2))
        with tracker.scope("actor"):
            tracker.stat("tokens", loss=np.array([1.0, 3.0]))
            tracker.scalar(lr=0.1)
    assert tracker.export() == {"ppo/tokens": 2.0, "ppo/actor/loss": 2.0, "ppo/actor/lr": 0.1}


def test_nothing_masked_in_leaves_means_out_and_sums_zero() -> None:
    tracker = StatsTracker()
    tracker.denominator(tokens=np.zeros(2))
    tracker.stat("tokens", loss=np.ones(2))
    tracker.stat("tokens", "sum", total=np.ones(2))
    assert tracker.export() == {"tokens": 0.0, "total": 0.0}


def test_scalars_are_averaged_and_an_export_forgets() -> None:
    tracker = StatsTracker()
    tracker.scalar(x=1.0)
    tracker.scalar(x=3.0)
    assert tracker.export() == {"x": 2.0}
    assert tracker.export() == {}


def test_timers_add_up_under_one_scope() -> None:
    tracker = StatsTracker()
    with tracker.scope("ppo"):
        for _ in range(2):
            with tracker.timer("train"):
                pass
    exported = tracker.export()
    assert list(exported) == ["timeperf/train"]
    assert exported["timeperf/train"] >= 0


def test_torch_tensors_are_taken_in_any_dtype() -> None:
    torch = pytest.importorskip("torch")
    tracker = StatsTracker()
    tracker.denominator(tokens=torch.ones(2, dtype=torch.bool))
    tracker.stat("tokens", loss=torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True))
    assert tracker.export()["loss"] == 1.5


def test_a_wrong_shape_or_an_unknown_mask_is_named() -> None:
    tracker = StatsTracker()
    with pytest.raises(DataError, match="no denominator 'tokens'"):
        tracker.stat("tokens", loss=np.ones(2))
    tracker.denominator(tokens=np.ones(2))
    with pytest.raises(DataError, match=r"loss: shape \(3,\), its mask has \(2,\)"):
        tracker.stat("tokens", loss=np.ones(3))
    tracker.stat("tokens", loss=np.ones(2))
    with pytest.raises(DataError, match="recorded as"):
        tracker.stat("tokens", "max", loss=np.ones(2))
