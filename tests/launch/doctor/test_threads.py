import dataclasses
from collections.abc import Callable

import pytest

from astraflow.launch.doctor import Finding, Machine, Severity


def test_too_many_threads_for_the_cores(one: Callable[..., Finding]) -> None:
    found = one("threads", "raas.threads=3")
    assert found.severity is Severity.ERROR
    assert found.key == "raas.threads"
    assert "4 torch threads on 2 cores" in found.message
    assert "set raas.threads=1" in found.remedy


def test_the_process_with_most_threads_is_named(one: Callable[..., Finding]) -> None:
    assert one("threads", "+trainer_base.threads=2").key == "trainer_model0.threads"


def test_instances_count_each(one: Callable[..., Finding]) -> None:
    assert (
        "5 torch threads"
        in one("threads", "raas.instances=2", "raas.threads=2", "rollout.max_concurrent_rollouts=4").message
    )


def test_one_thread_each_on_too_few_cores_is_a_warning(one: Callable[..., Finding], here: Machine) -> None:
    found = one("threads", on=dataclasses.replace(here, cores=1))
    assert found.severity is Severity.WARNING
    assert "2 computing processes share 1 cores" in found.message


@pytest.mark.parametrize("threads", [3, 8])
def test_the_base_models_threads_count_too(one: Callable[..., Finding], threads: int) -> None:
    assert one("threads", f"+base_model.threads={threads}").key == "base_model.threads"
