from __future__ import annotations

from astraflow.core.data import Manifest
from astraflow.core.weight_manager.layout import lay_out
from astraflow.core.weight_manager.policy import SyncPolicy

LAYOUT = lay_out([("w", (100,), "float32")])


def version(number: int, model_id: str = "model0") -> Manifest:
    return Manifest(model_id=model_id, version=number, tensors=LAYOUT, digest=str(number))


def test_full_is_full() -> None:
    policy = SyncPolicy()
    policy.proved(version(0), "full")
    assert policy.base_for(version(1)) is None
    assert policy.full_because == {}


def test_a_delta_needs_a_proven_older_base_of_the_same_model() -> None:
    policy = SyncPolicy("delta")
    assert policy.base_for(version(1)) is None
    policy.proved(version(1), "full")
    assert policy.base_for(version(2)) == version(1)
    assert policy.base_for(version(1)) is None
    assert policy.base_for(version(2, "other")) is None
    assert policy.full_because == {"no_proven_base": 1, "base_not_older": 2}


def test_what_failed_in_the_engine_costs_the_base() -> None:
    policy = SyncPolicy("delta")
    policy.proved(version(1), "full")
    policy.distrust()
    assert policy.base_for(version(2)) is None


def test_a_delta_that_did_not_come_costs_nothing_but_a_count() -> None:
    policy = SyncPolicy("delta")
    policy.proved(version(1), "full")
    policy.fell_back("delta_not_ready")
    assert policy.base_for(version(2)) == version(1)
    assert policy.full_because == {"delta_not_ready": 1}


def test_the_interval_counts_deltas_since_the_last_full_version() -> None:
    policy = SyncPolicy("delta", full_sync_interval=2)
    policy.proved(version(0), "full")
    for number in (1, 2):
        assert policy.base_for(version(number)) is not None
        policy.proved(version(number), "delta")
    assert policy.base_for(version(3)) is None
    policy.proved(version(3), "full")
    assert policy.base_for(version(4)) is not None


def test_long_chains_are_not_worth_it() -> None:
    policy = SyncPolicy("delta")
    assert policy.worth(200, version(1))
    assert not policy.worth(201, version(1))
