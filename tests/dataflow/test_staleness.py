"""CASES "Staleness and buffer": admission and consumption."""

from collections import Counter

import numpy as np
import pytest

from astraflow.core.data import Group, Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.ledger import Moved, State
from astraflow.dataflow.scripted import trajectory
from astraflow.dataflow.staleness import (
    Admission,
    LengthDeciles,
    VersionSteps,
    capacity,
    mask_stale,
)
from astraflow.errors import InvariantError

TASK = m.Task(task_id="t", group_id=1, data={})


def group(*versions: list[int]) -> Group:
    return Group(
        group_id=1,
        task_id="t",
        prompt_id=0,
        model_id="model0",
        trajectories=tuple(trajectory(TASK, i, Value(1.0), v) for i, v in enumerate(versions)),
    )


@pytest.mark.parametrize(
    ("max_concurrent", "batch", "eta", "step", "running", "accepted", "expected"),
    [
        (10, 4, 2, 0, 0, 0, 10),
        (5, 2, 10, 0, 3, 0, 2),
        (100, 4, 2, 0, 0, 0, 12),
        (1000, 4, 2, 5, 0, 0, 32),
        (20, 4, 2, 0, 0, 5, 7),
        (5, 2, 5, 0, 5, 0, 0),
        (20, 8, 3, 0, 0, 15, 17),
        (100, 8, 3, 0, 0, 30, 2),
        (0, 4, 2, 0, 0, 0, 1),
        (4, 4, 0, 0, 6, 0, -2),
    ],
)
def test_capacity(
    max_concurrent: int, batch: int, eta: int, step: int, running: int, accepted: int, expected: int
) -> None:
    assert capacity(max_concurrent, batch, eta, step, running=running, accepted=accepted) == expected


@pytest.mark.parametrize("step", [0, 5, 10, 50])
def test_a_restored_admission_neither_bursts_nor_starves(step: int) -> None:
    assert Admission(16, 2, step).capacity(1000) == 48
    assert Admission(16, 2, step, held=5).capacity(1000) == 43


def test_five_rejections_free_five_places() -> None:
    admission = Admission(8, 3)
    for _ in range(20):
        admission.moved(Moved(1, None, State.QUEUED))
        admission.moved(Moved(1, State.QUEUED, State.LEASED))
        admission.moved(Moved(1, State.LEASED, None))
        admission.moved(Moved(1, None, State.DONE))
    assert admission.capacity(20) == 12
    for _ in range(5):
        admission.moved(Moved(1, State.DONE, State.DROPPED))
    assert admission.capacity(20) == 17
    assert (admission.running, admission.accepted) == (0, 15)


def test_a_place_is_freed_by_a_drop_from_any_state() -> None:
    for before in (State.LEASED, State.DONE, State.READY):
        admission = Admission(1, 0)
        admission.moved(Moved(1, None, before))
        assert admission.capacity(9) == 0
        admission.moved(Moved(1, before, State.DROPPED))
        assert admission.capacity(9) == 1


def test_training_frees_no_place_but_its_step_does() -> None:
    admission = Admission(1, 0)
    admission.moved(Moved(1, None, State.SERVED))
    assert admission.capacity(9) == 0
    admission.moved(Moved(1, State.SERVED, State.TRAINED))
    admission.advance(1)
    assert (admission.accepted, admission.capacity(9)) == (1, 1)
    with pytest.raises(InvariantError, match="goes back"):
        admission.advance(0)


def test_places_of_replays_in_later_batches_are_reserved_but_never_the_next_batch() -> None:
    for replays in range(8):
        admission = Admission(8, 3, replays=replays)
        assert admission.capacity(1000) == 4 * 8 - 3 * replays >= 8
    admission = Admission(1, 1, step=4)
    admission.moved(Moved(3, None, State.SERVED))  # a replay takes a place, too
    assert (admission.accepted, admission.capacity(9)) == (5, 1)
    admission.moved(Moved(3, State.SERVED, State.TRAINED))
    admission.advance(5)
    admission.validate(Counter(), 3, replayed=2)


def test_in_samples_a_group_counts_for_what_it_has_once_that_is_known() -> None:
    admission = Admission(16, 1, samples=4)  # batches of four groups of four
    assert admission.capacity(1000) == 8
    for _ in range(6):
        admission.moved(Moved(1, None, State.QUEUED))
    assert (admission.running, admission.capacity(1000), admission.capacity(7)) == (24, 2, 1)
    for samples in (4, 3, 2):
        admission.moved(Moved(1, State.QUEUED, State.LEASED))
        admission.moved(Moved(1, State.LEASED, None))
        admission.moved(Moved(1, None, State.DONE, "m"))
        admission.moved(Moved(1, State.DONE, State.READY, "m", samples=samples))
    assert (admission.running, admission.accepted, admission.capacity(1000)) == (12, 9, 3)
    admission.moved(Moved(1, State.READY, State.DROPPED, "m", samples=2))
    assert (admission.accepted, admission.capacity(1000)) == (7, 4)
    admission.moved(Moved(1, State.READY, None, "m", samples=4))
    admission.moved(Moved(1, None, State.QUEUED))
    assert (admission.running, admission.accepted) == (16, 3)


def test_in_samples_a_group_may_start_while_a_place_is_free_and_steps_count_as_whole_batches() -> None:
    admission = Admission(8, 0, samples=4)
    for step in range(1, 50):
        served = []
        while (left := admission.capacity(1000)) > 0:
            assert admission.held < 8
            assert left <= 2
            admission.moved(Moved(1, None, State.DONE, "m"))
            admission.moved(Moved(1, State.DONE, State.READY, "m", samples=3))
            admission.moved(Moved(1, State.READY, State.SERVED, "m", samples=3))
            served.append(3)
        assert 8 <= sum(served) < 8 + 4  # a batch fills, though its groups lost samples
        for samples in served:
            admission.moved(Moved(1, State.SERVED, State.TRAINED, "m", samples=samples))
        admission.advance(step)
        assert admission.accepted == 8 * step


def test_a_lagging_raas_gets_only_the_places_that_its_version_fills_in_time() -> None:
    admission = Admission(4, 2, step=5)
    assert admission.capacity(1000, step=5) == 12
    assert admission.capacity(1000, step=4) == 8
    assert admission.capacity(1000, step=3) == 4
    assert admission.capacity(1000, step=2) == 0
    assert admission.capacity(1000, step=9) == 12


def test_steps_not_numbers_make_the_age() -> None:
    steps = VersionSteps()
    for version, step in [(0, 0), (1, 1), (5, 1), (6, 2)]:
        steps.publish(version, step)
    assert [steps.step_of(v) for v in (0, 1, 2, 5, 6, 7, -1)] == [0, 1, None, 1, 2, None, None]
    assert steps.steps_of(np.array([-1, 0, 3, 6, 99])).tolist() == [-1, 0, -1, 2, -1]
    assert steps.newest == 6
    with pytest.raises(InvariantError, match="not newer"):
        steps.publish(6, 3)


def test_sampled_versions_are_distinct_and_without_context() -> None:
    assert group([2, 2, 3], [1, 1, 3]).versions.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("oldest", "kept"), [(0, [[1, 1, 1], [1, 1, 1]]), (2, [[0, 1, 1], [0, 0, 1]]), (3, [[0, 0, 1], [0, 0, 0]])]
)
def test_masking_takes_old_tokens_out_of_the_loss(oldest: int, kept: list[list[int]]) -> None:
    steps = VersionSteps()
    for version in range(4):
        steps.publish(version, version)
    masked = mask_stale(group([1, 2, 3], [0, 1, 2]), steps, oldest)
    assert masked is not None
    for t, mask in zip(masked.trajectories, kept, strict=True):
        assert t.arrays.mask.tolist() == [0, 0, *mask]
        t.check()
    assert masked.rewards.tolist() == [1.0, 1.0]


def test_a_group_without_a_young_token_is_nothing() -> None:
    steps = VersionSteps()
    for version in range(4):
        steps.publish(version, version)
    assert mask_stale(group([0, 1]), steps, 3) is None


def test_length_deciles() -> None:
    deciles = LengthDeciles(window=100)
    assert deciles.decile(5) == 0
    for length in range(1, 301):
        deciles.observe(length)
    # the window holds 201..300
    assert [deciles.decile(n) for n in (1, 201, 210, 211, 250, 251, 300, 999)] == [0, 0, 0, 1, 4, 5, 9, 9]
