"""The benchmark measures what it says, on versions of a few megabytes; figures are not judged here."""

from __future__ import annotations

import numpy as np
import pytest

from astraflow.core.weight_manager.bench import measure, peers
from astraflow.core.weight_manager.bench.versions import make_pair, transformer_layout

SIZE = 2_000_000


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "REPEATS", 1)


@pytest.mark.parametrize("density", [0.004, 0.05])
def test_pairs_differ_in_the_share_that_was_asked_for(density: float) -> None:
    pair = make_pair(SIZE, density)
    before, after = np.frombuffer(pair.before, np.uint16), np.frombuffer(pair.after, np.uint16)
    assert np.count_nonzero(before != after) == pair.changed
    assert pair.changed / len(after) == pytest.approx(density, rel=0.15)
    assert SIZE <= pair.nbytes < SIZE + 16 * 2**20
    assert transformer_layout(SIZE)[0].name == "model.embed_tokens.weight"


def test_the_codec_is_measured_on_a_proven_result() -> None:
    figures = measure.codec(make_pair(SIZE, 0.01))
    assert figures.changed > 0
    assert 2 < figures.bytes_per_change < 3
    assert min(figures.encode_gb_s, figures.verify_apply_gb_s, figures.swap_ms) > 0


def test_every_figure_has_its_yardstick() -> None:
    lines: list[str] = []
    results = measure.measure_all(SIZE, [0.01], lines.append)
    assert results["publish"]["blocked_ratio"] == results["publish"]["copy_s"] / results["publish"]["memcpy_s"]
    assert results["transfer"]["plain_s"] > 0
    assert results["link"]["full_s"] > 2 * measure.ROUND_TRIP_S
    assert results["fan_out"]["receivers"] == 7
    assert results["memory"]["sender"] > 2
    assert len(lines) == 7
