from __future__ import annotations

import pytest

from astraflow.cli.bench_weights import parse_densities
from astraflow.errors import ConfigError


def test_densities_are_percentages() -> None:
    assert parse_densities("0.4, 1") == [0.004, 0.01]


@pytest.mark.parametrize("text", ["", "x", "0", "100", "0.4,-1"])
def test_other_densities_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected percentages"):
        parse_densities(text)
