from __future__ import annotations

import zlib

import numpy as np
import pytest

from astraflow.core.weight_manager.delta import planes
from astraflow.core.weight_manager.delta.planes import PlaneReader, PlaneWriter
from astraflow.errors import WeightError

RNG = np.random.default_rng(5)
BLOCKS = {
    "noise": RNG.integers(0, 256, 50_000, dtype=np.uint8),
    "few symbols": RNG.geometric(0.6, 50_000).astype(np.uint8),
    "zeros": np.zeros(50_000, np.uint8),
    "one": np.array([7], np.uint8),
}


def written(*blocks: np.ndarray) -> memoryview:
    writer = PlaneWriter()
    for block in blocks:
        writer.write(block)
    data = b"".join(writer.parts)
    assert writer.length == len(data)
    return memoryview(data)


@pytest.mark.parametrize("limit", [17, 1000, 2**16])
def test_blocks_of_all_kinds_are_read_back_in_any_portions(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "INPUT", limit)
    whole = np.concatenate(list(BLOCKS.values()))
    reader = PlaneReader("p", written(*BLOCKS.values()))
    portions = [1, 49_999, 60_000]
    read = [reader.read(count) for count in (*portions, len(whole) - sum(portions))]
    reader.finish()
    assert np.array_equal(np.concatenate(read), whole)


def test_noise_is_stored_and_few_symbols_are_near_their_entropy() -> None:
    assert len(written(BLOCKS["noise"])) < 50_100
    shares = np.bincount(BLOCKS["few symbols"]) / 50_000
    entropy = -(shares[shares > 0] * np.log2(shares[shares > 0])).sum()
    assert 8 * len(written(BLOCKS["few symbols"])) / 50_000 < 1.05 * entropy + 0.02
    assert len(written(BLOCKS["zeros"])) < 400


def test_a_plane_that_is_cut_or_too_long_is_refused() -> None:
    data = written(BLOCKS["few symbols"])
    with pytest.raises(WeightError, match="ends"):
        PlaneReader("p", data[:-10]).read(50_000)
    reader = PlaneReader("p", data)
    reader.read(49_999)
    with pytest.raises(WeightError, match="bytes beyond its last entry"):
        reader.finish()
    with pytest.raises(WeightError, match="plane p of a delta"):
        PlaneReader("p", memoryview(b"\xff" * 20)).read(1)


def test_a_small_plane_gives_no_more_than_was_asked_for() -> None:
    bomb = zlib.compress(bytes(10**7), 9, -15)
    assert len(PlaneReader("p", memoryview(bomb)).read(10)) == 10
