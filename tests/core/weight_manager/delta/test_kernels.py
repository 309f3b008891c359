from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from astraflow.core.weight_manager.delta import kernels
from astraflow.core.weight_manager.delta.kernels import LINE, exchange, join, positions, scan, split

KINDS = [np.uint8, np.uint16, np.uint32]
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
"""Which way is taken does not change from example to example."""


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "_compiled", None)
        monkeypatch.setattr(kernels, "CHUNK", 256)
    elif not kernels.is_compiled():
        pytest.skip("the package was installed without a C compiler")
    return str(request.param)


@st.composite
def versions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one length, of which some elements differ, now and then nearly all."""
    old = draw(arrays(draw(st.sampled_from(KINDS)), st.integers(0, 400)))
    share = draw(st.sampled_from([0.0, 0.01, 0.2, 0.95, 1.0]))
    differ = np.random.default_rng(draw(st.integers(0, 9))).random(len(old)) < share
    return old, np.where(differ, old ^ old.dtype.type(1), old)


@shared
@given(versions(), st.integers(0, 20), st.integers(LINE, 3 * LINE))
def test_a_scan_finds_what_differs_and_nothing_else(
    pair: tuple[np.ndarray, np.ndarray], begin: int, places: int
) -> None:
    old, new = pair
    begin = min(begin, len(new))
    gaps, values = np.empty(places, np.uint32), np.empty(places, new.dtype)
    found, taken, next_, at = [], [], begin, begin
    while at < len(new):
        before, position = at, next_
        at, next_, count = scan(old, new, at, len(new), next_, gaps, values)
        assert at > before
        for gap in gaps[:count].tolist():
            found.append(position + gap)
            position += gap + 1
        assert position == next_
        taken += values[:count].tolist()
    assert found == (begin + np.flatnonzero(old[begin:] != new[begin:])).tolist()
    assert taken == new[found].tolist()


@shared
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1), st.sampled_from(KINDS), st.booleans())
def test_planes_are_reversible(numbers: list[int], kind: type[np.unsignedinteger], rotate: bool) -> None:
    values = np.array(numbers, np.uint64).astype(kind)
    planes = split(values, rotate=rotate)
    assert planes.shape == (values.itemsize, len(values))
    assert np.array_equal(join(list(planes), rotate=rotate), values)


def test_planes_begin_with_the_least_byte_and_rotation_gathers_the_exponent() -> None:
    assert split(np.array([0x01020304], np.uint32), rotate=False).ravel().tolist() == [4, 3, 2, 1]
    bits = np.array([-1.5, 1.5], np.float32).view(np.uint32)
    assert split(bits, rotate=True)[3].tolist() == [127, 127]


@shared
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50), st.integers(0, 2**40))
def test_gaps_become_positions(gaps: list[int], next_: int) -> None:
    planes = list(split(np.array(gaps, np.uint32), rotate=False))
    expected = []
    for gap in gaps:
        expected.append(next_ + gap)
        next_ += gap + 1
    assert positions(planes, next_ - sum(gaps) - len(gaps)).tolist() == expected


@shared
@given(versions())
def test_an_exchange_writes_and_gives_back(pair: tuple[np.ndarray, np.ndarray]) -> None:
    old, new = pair
    held, where = old.copy(), np.flatnonzero(old != new)
    values = new[where]
    kept = exchange(held, where, values)
    assert np.array_equal(held, new)
    assert np.array_equal(kept, old[where])
    assert np.array_equal(values, new[where]), "what was given stays as it is"
    exchange(held, where, kept)
    assert np.array_equal(held, old)
