"""Tasks and updates without IO: thousands of interleavings in a second."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.core.data import StopReason, Trajectory, Turn, Value
from astraflow.core.data.trajectory import Episode, Failed, GroupResult
from astraflow.core.protocol.messages import Lane, Task, VersionState
from astraflow.errors import InvariantError
from astraflow.raas import state
from astraflow.raas.state import Phase, TaskPhase, TaskTable, UpdatePhase, Verdict

RESULT = GroupResult(group_id=1, episodes=(Failed("crash"),))


def tasks(*ids: str, n_samples: int | None = None) -> list[Task]:
    return [Task(task_id=task_id, group_id=1, data={}, n_samples=n_samples) for task_id in ids]


def test_a_task_goes_from_submission_to_acknowledgement() -> None:
    table = TaskTable()
    assert [a.accepted for a in table.submit(tasks("a", "b", "c"), "default", "train")] == [True] * 3
    started = table.start(2)
    assert [slot.task.task_id for slot in started] == ["a", "b"]
    assert (table.running, table.queued) == (2, 1)
    assert table.finish(started[1], RESULT)
    assert [item.task_id for item in table.results("train", 10)] == ["b"]
    assert [item.task_id for item in table.results("train", 10)] == ["b"], "kept until acknowledged"
    table.acknowledge(["b", "a", "unknown"])
    assert table.results("train", 10) == []
    assert table.running == 1, "what has no result yet cannot be acknowledged away"
    assert [slot.task.task_id for slot in table.start(2)] == ["c"]
    table.validate()


@pytest.mark.parametrize("phase", list(TaskPhase))
def test_the_same_task_id_twice_is_one_task(phase: TaskPhase) -> None:
    table = TaskTable()
    table.submit(tasks("a"), "default", "train")
    if phase is not TaskPhase.QUEUED:
        (slot,) = table.start(1)
        if phase is TaskPhase.FINISHED:
            table.finish(slot, RESULT)
    (again,) = table.submit(tasks("a"), "default", "train")
    assert again.accepted
    assert again.reason == "known already"
    assert table.running + table.queued + len(table.results("train", 9)) == 1
    table.validate()


def test_a_submit_repeated_after_the_acknowledgement_starts_nothing() -> None:
    table = TaskTable()
    table.submit(tasks("a"), "default", "train")
    table.finish(table.start(1)[0], RESULT)
    table.acknowledge(["a"])
    assert table.submit(tasks("a"), "default", "train")[0].accepted
    assert table.start(1) == []


def test_a_result_names_the_lease_that_its_task_was_given() -> None:
    table = TaskTable()
    table.submit([Task(task_id="a", group_id=7, owner="r#3", attempt=2, data={})], "default", "train")
    table.finish(table.start(1)[0], RESULT)
    (item,) = table.results("train", 9)
    assert (item.lease.group_id, item.lease.owner, item.lease.attempt) == (7, "r#3", 2)


@pytest.mark.parametrize("acknowledged", [False, True])
@pytest.mark.parametrize("change", [{"owner": "r#4"}, {"attempt": 3}, {"group_id": 8}])
def test_a_task_that_is_known_by_another_lease_is_refused(change: dict[str, Any], acknowledged: bool) -> None:
    """Its result would name a lease that nobody holds."""
    table = TaskTable()
    given: dict[str, Any] = {"task_id": "a", "group_id": 7, "owner": "r#3", "attempt": 2, "data": {}}
    table.submit([Task(**given)], "default", "train")
    if acknowledged:
        table.finish(table.start(1)[0], RESULT)
        table.acknowledge(["a"])
    assert table.submit([Task(**given)], "default", "train")[0].accepted
    (refused,) = table.submit([Task(**given | change)], "default", "train")
    assert not refused.accepted
    assert "another lease" in refused.reason


def test_the_memory_of_acknowledged_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ACKNOWLEDGED_KEPT", 2)
    table = TaskTable()
    for name in "abc":
        table.submit(tasks(name), "default", "train")
        table.finish(table.start(1)[0], RESULT)
        table.acknowledge([name])
    assert [a.reason for a in table.submit(tasks("a", "b", "c"), "default", "train")] == [
        "",
        "known already",
        "known already",
    ]


def test_evaluation_starts_first() -> None:
    table = TaskTable()
    table.submit(tasks("t"), "default", "train")
    table.submit(tasks("e"), "default", "eval")
    assert [slot.task.task_id for slot in table.start(1)] == ["e"]
    assert table.in_lane("eval") == (1, 0)
    assert table.in_lane("train") == (0, 1)


def test_results_stay_in_their_lane() -> None:
    table = TaskTable()
    table.submit(tasks("e"), "default", "eval")
    table.finish(table.start(1)[0], None)
    assert table.results("train", 9) == []
    (item,) = table.results("eval", 9)
    assert item.result is None, "a rejected occurrence is a result too"


def test_cancelled_and_reset_tasks_never_appear_again() -> None:
    table = TaskTable()
    table.submit(tasks("queued", "running", "finished", "kept"), "default", "train")
    slots = {slot.task.task_id: slot for slot in table.start(4)}
    table.finish(slots["finished"], RESULT)
    cancelled = table.cancel(["running", "finished", "unknown", "running"])
    assert [slot.task.task_id for slot in cancelled] == ["running", "finished"]
    assert not table.finish(slots["running"], RESULT)
    table.submit(tasks("e"), "default", "eval")
    assert {slot.task.task_id for slot in table.reset("train")} == {"queued", "kept"}
    assert table.epoch == 1
    assert not table.finish(slots["kept"], RESULT)
    assert table.results("train", 9) == []
    assert table.queued == 1, "the other lane is untouched"
    table.validate()


def test_a_resubmitted_task_does_not_take_the_result_of_the_one_that_was_reset_away() -> None:
    table = TaskTable()
    table.submit(tasks("a"), "default", "train")
    (old,) = table.start(1)
    table.reset("train")
    table.submit(tasks("a"), "default", "train")
    (new,) = table.start(1)
    assert not table.finish(old, RESULT)
    assert table.finish(new, RESULT)


@pytest.mark.parametrize("n_samples", [0, -1, 1 << 16])
def test_a_number_of_samples_that_sample_ids_cannot_hold_is_refused(n_samples: int) -> None:
    (refused,) = TaskTable().submit(tasks("a", n_samples=n_samples), "default", "train")
    assert not refused.accepted
    assert "n_samples" in refused.reason


def test_a_pull_is_bounded_in_bytes_but_gives_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "REPLY_BYTES", 100)
    ids = np.zeros(10, np.int32)
    turn = Turn(ids=ids, mask=ids.astype(np.uint8), logprobs=ids.astype(np.float32), versions=ids - 1)
    trajectory = Trajectory(
        task_id="a", group_id=1, sample_id=1, turns=(turn,), reward=Value(1.0), stop=StopReason.STOP
    )
    big = GroupResult(group_id=1, episodes=(Episode(trajectories=(trajectory,)),))
    table = TaskTable()
    table.submit(tasks("a", "b"), "default", "train")
    for slot in table.start(2):
        table.finish(slot, big)
    assert len(table.results("train", 10)) == 1


@given(st.lists(st.tuples(st.sampled_from(["submit", "start", "finish", "ack", "cancel", "reset"]), st.integers(0, 7))))
def test_a_task_is_always_in_exactly_one_place(steps: list[tuple[str, int]]) -> None:
    table = TaskTable()
    started: list[state.Slot] = []
    for step, number in steps:
        lane: Lane = "eval" if number % 2 else "train"
        match step:
            case "submit":
                table.submit(tasks(str(number)), "default", lane)
            case "start":
                started += table.start(number)
            case "finish" if started:
                table.finish(started[number % len(started)], RESULT)
            case "ack":
                table.acknowledge([str(number)])
            case "cancel":
                table.cancel([str(number)])
            case "reset":
                table.reset(lane)
        table.validate()


def test_validate_finds_a_task_in_two_places() -> None:
    table = TaskTable()
    table.submit(tasks("a"), "default", "train")
    table._lanes["train"].running["a"] = table._slots["a"]
    with pytest.raises(InvariantError, match="a is queued"):
        table.validate()


def served(number: int) -> VersionState:
    return VersionState(number=number, digest=f"d{number}", verified=True)


def serving(number: int) -> UpdatePhase:
    phase = UpdatePhase()
    phase.notify(number, f"d{number}")
    phase.swap()
    phase.end(served(number))
    return phase


def test_an_update_goes_from_idle_to_serving() -> None:
    phase = UpdatePhase()
    assert phase.phase is Phase.IDLE
    assert phase.notify(0, "d0").verdict is Verdict.BEGIN
    assert phase.phase is Phase.PULLING
    phase.swap()
    assert phase.phase is Phase.SWAPPING
    assert phase.end(served(0)) is None
    assert phase.phase is Phase.SERVING
    assert phase.served == served(0)


def test_the_same_version_again_is_done_and_a_lower_one_refused() -> None:
    phase = serving(5)
    assert phase.notify(5, "d5") == state.Decision(Verdict.DONE, "version=5 <= local=5")
    assert phase.notify(4, "d4") == state.Decision(Verdict.REFUSE, "version=4 <= local=5")


def test_a_number_with_another_digest_is_an_alarm() -> None:
    phase = serving(5)
    decision = phase.notify(5, "other")
    assert decision.verdict is Verdict.CONFLICT
    assert "d5" in decision.reason
    assert phase.alarms == 1
    phase.notify(6, "d6")
    assert phase.notify(6, "other").verdict is Verdict.CONFLICT, "also while it is on its way"
    assert phase.alarms == 2


def test_a_newer_version_takes_the_place_of_one_that_is_being_pulled() -> None:
    phase = serving(1)
    phase.notify(2, "d2")
    assert phase.notify(4, "d4").verdict is Verdict.REPLACE
    assert phase.notify(4, "d4").verdict is Verdict.JOIN
    assert phase.notify(3, "d3") == state.Decision(Verdict.REFUSE, "version=3 was superseded by version=4")
    phase.swap()
    phase.end(served(4))
    assert phase.served == served(4)


def test_a_newer_version_waits_while_one_is_swapped_in() -> None:
    phase = serving(1)
    phase.notify(2, "d2")
    phase.swap()
    assert phase.notify(3, "d3").verdict is Verdict.QUEUE
    assert phase.notify(4, "d4").verdict is Verdict.QUEUE
    assert phase.notify(4, "d4").verdict is Verdict.JOIN
    assert phase.notify(3, "d3").verdict is Verdict.REFUSE
    following = phase.end(served(2))
    assert following is not None
    assert following.number == 4
    assert phase.phase is Phase.PULLING


def test_a_failed_update_leaves_what_was_served() -> None:
    phase = serving(1)
    phase.notify(2, "d2")
    phase.swap()
    assert phase.end(None) is None
    assert phase.served == served(1)
    assert phase.notify(2, "d2").verdict is Verdict.BEGIN, "and it can be tried again"
    first = UpdatePhase()
    first.notify(0, "d0")
    first.end(None)
    assert first.phase is Phase.IDLE


def test_a_pull_that_brought_something_newer_makes_the_waiting_one_needless() -> None:
    phase = serving(1)
    phase.notify(2, "d2")
    phase.swap()
    phase.notify(3, "d3")
    assert phase.end(served(3)) is None
    assert phase.phase is Phase.SERVING


def test_a_swap_without_a_pull_is_a_bug() -> None:
    with pytest.raises(InvariantError):
        serving(1).swap()
    with pytest.raises(InvariantError):
        serving(1).end(None)
