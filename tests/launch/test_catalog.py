"""What is read from sources agrees with what the modules say when imported."""

import pytest

from astraflow.launch.catalog import presets, reasoning_gym_datasets, reasoning_gym_settings


def test_presets_are_the_models_own() -> None:
    from astraflow.core.model.presets import PRESETS  # loads torch, which collecting tests should not

    assert presets() == list(PRESETS)


def test_datasets_are_the_packages_own() -> None:
    factory = pytest.importorskip("reasoning_gym.factory")
    assert set(reasoning_gym_datasets()) == set(factory.DATASETS)


def test_every_datasets_settings_can_be_read() -> None:
    for name in reasoning_gym_datasets():
        assert reasoning_gym_settings(name) is not None, name
    chain_sum = reasoning_gym_settings("chain_sum")
    assert chain_sum is not None
    assert chain_sum.types["max_digits"] is int
