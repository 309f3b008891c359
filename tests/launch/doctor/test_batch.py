from collections.abc import Callable

import pytest

from astraflow.launch.doctor import Finding, Severity


def test_a_batch_that_does_not_divide(one: Callable[..., Finding]) -> None:
    found = one("batch", "trainer_base.train_batch_size=30")
    assert found.severity is Severity.ERROR
    assert found.key == "trainer_model0.train_batch_size"
    assert "30 samples do not make whole groups of n_samples = 4 (7 groups and 2 samples over)" in found.message
    assert found.remedy == "set train_batch_size=28 or 32"


def test_more_minibatches_than_groups(one: Callable[..., Finding]) -> None:
    found = one("batch", "+trainer_base.actor.ppo_n_minibatches=9")
    assert found.key == "trainer_model0.actor.ppo_n_minibatches"


def test_places_that_the_bound_never_fills(one: Callable[..., Finding]) -> None:
    found = one("batch", "rollout.max_concurrent_rollouts=64")
    assert found.severity is Severity.WARNING
    assert "admits at most (max_staleness + 1) × 8 = 24: 40 places stay empty" in found.message
    assert "max_concurrent_rollouts=24" in found.remedy


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("+trainer_base.actor.mb_spec.max_tokens_per_mb=20", "trainer_model0.actor.mb_spec.max_tokens_per_mb"),
        ("raas.models.model0.gconfig.max_new_tokens=1020", "raas.models.model0.gconfig.max_new_tokens"),
    ],
)
def test_sequences_that_do_not_fit(one: Callable[..., Finding], override: str, key: str) -> None:
    found = one("batch", override)
    assert (found.severity, found.key) == (Severity.ERROR, key)


def test_a_context_that_the_engines_cache_cannot_hold(one: Callable[..., Finding]) -> None:
    found = one("batch", "+raas.models.model0.embedded.kv_cache_gib=0.001")
    assert (found.severity, found.key) == (Severity.ERROR, "raas.models.model0.embedded.kv_cache_gib")
    assert "a sequence of 1024 tokens takes 0.00244 GiB of keys and values" in found.message


def test_an_engine_narrower_than_a_group(one: Callable[..., Finding]) -> None:
    found = one("batch", "+raas.models.model0.embedded.max_running_requests=2")
    assert found.severity is Severity.WARNING
    assert found.key == "raas.models.model0.embedded.max_running_requests"


def test_fewer_prompts_than_groups(one: Callable[..., Finding]) -> None:
    found = one("batch", rows=5)
    assert "5 prompts for 8 groups a step" in found.message
