"""The audit agrees with a right log, and names what is wrong in any other."""

from collections.abc import Sequence

import pytest

from astraflow.core.protocol.messages import ReadyRequest
from astraflow.dataflow.audit import Auditor, AuditReport
from astraflow.dataflow.ledger import (
    Acknowledge,
    Curate,
    Drop,
    DropReason,
    Event,
    Expire,
    Finish,
    GroupKey,
    Issue,
    Lease,
    LoseLeases,
    Requeue,
    Rewind,
    Serve,
    Settle,
)
from astraflow.dataflow.records import Announced, Record, TrainerReady

KEY = GroupKey("model0")


def finished(group_id: int, length: int = 5, drop: DropReason | None = None) -> list[Event]:
    return [
        Issue(group_id),
        Lease((group_id,), "a#1", 10.0),
        Finish(group_id, "a#1", (KEY,)),
        Curate(group_id, drop, length),
    ]


def report_of(events: Sequence[Record], most: int = 20) -> AuditReport:
    auditor = Auditor(most)
    for event in events:
        auditor.see(event)
    return auditor.report()


def test_a_run_with_every_event_is_conserved() -> None:
    events: list[Event] = [e for n in range(1, 5) for e in finished(n, length=10 * n)]
    events += [
        Serve((1, 2), 0),
        Acknowledge("model0", 1),
        Serve((3,), 1),
        Rewind("model0", 0),
        Requeue((2,)),
        Drop((4,), DropReason.STALE),
        Lease((2,), "a#1", 20.0),
        LoseLeases("a#1"),
        Lease((2,), "a#1", 20.0),
        Expire(21.0),
        Finish(2, "a#1", (KEY,)),
        Serve((1, 3), 2),
        Acknowledge("model0", 1),
        Settle("model0", 1),
        *finished(5, length=7, drop=DropReason.ZERO_ADVANTAGE),
        Issue(6),
    ]
    report = report_of(events)
    assert report.conserved, report.problems
    assert (report.issued, report.trained, report.in_flight) == (6, 2, {"queued": 2})
    assert report.dropped == {"stale": 1, "zero_advantage": 1}
    assert (report.retrained, report.rerun, report.lost_leases, report.orphans) == (2, 1, 2, 1)
    assert report.kept_lengths.mean == 20
    assert report.lost_lengths["stale"].p50 == 40
    assert report.stale_share_by_decile[4] == 1.0  # five lengths: the longest is in the fifth part


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (Serve((1,), 0), "goes to served from trained"),
        (Curate(1), "goes to ready from trained"),
        (Lease((9,), "a#1", 1.0), "goes to leased from None"),
        (Requeue((1,)), "the ledger refuses Requeue"),
        (Serve((2,), 1, (2,)), "group 2 is replayed for model0, which did not train it"),
        (Serve((2,), 1, (1, 1)), "replayed twice in one batch"),
    ],
)
def test_a_move_that_is_not_allowed_is_named(event: Event, problem: str) -> None:
    report = report_of([*finished(1), *finished(2), Serve((1,), 0), Acknowledge("model0", 1), event])
    assert not report.conserved
    assert any(problem in text for text in report.problems)


def test_replays_are_counted_apart_and_taken_back() -> None:
    events = [*finished(1), *finished(2), *finished(3), Serve((1,), 0), Acknowledge("model0", 1)]
    events += [Serve((2,), 1, (1,)), Acknowledge("model0", 2), Serve((3,), 2, (1, 2)), Acknowledge("model0", 3)]
    report = report_of(events)
    assert report.conserved, report.problems
    assert (report.issued, report.trained, report.replayed) == (3, 3, 3)
    report = report_of([*events, Rewind("model0", 2)])
    assert report.conserved, report.problems
    assert (report.trained, report.replayed, report.in_flight) == (2, 1, {"ready": 1})


def test_other_groups_of_an_occurrence_are_counted() -> None:
    other = GroupKey("model1")
    events: list[Event] = [Issue(0), Lease((1,), "a#1", 1.0), Finish(1, "a#1", (KEY, other)), Curate(1), Curate(2)]
    events += [Serve((1,), 0), Acknowledge("model0", 1), Rewind("model0", 0), Requeue((1,))]
    events += [Lease((1,), "a#1", 1.0), Finish(1, "a#1", (KEY,)), Curate(1)]
    report = report_of(events)
    assert report.conserved, report.problems
    assert (report.issued, report.in_flight) == (2, {"ready": 2})


def announced(step: int, version: int) -> Announced:
    return Announced("model0", version, step, "")


def back(step: int) -> TrainerReady:
    request = ReadyRequest(train_batch_size=2, sender_endpoint="h:1", model_id="model0", recovered_step=step)
    return TrainerReady(request)


def steps(*numbers: int) -> list[Record]:
    """A version and an acknowledgement for each step."""
    records: list[Record] = []
    for number, step in enumerate(numbers, 1):
        records += [*finished(number), Serve((number,), number - 1)]
        records += [announced(step, number), Acknowledge("model0", step)]
    return records


def test_a_lineage_that_goes_back_and_on_is_contiguous() -> None:
    log = [*steps(1, 2, 3), Settle("model0", 1), back(2), Rewind("model0", 2), announced(2, 4)]
    log += [Serve((3,), 4), announced(3, 5), Acknowledge("model0", 3), back(1), Rewind("model0", 1), announced(1, 6)]
    report = report_of(log)
    assert report.conserved, report.problems


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ([*steps(1, 2, 5)], "version 3 of model0 is of step 5, which does not follow step 2"),
        ([*steps(1, 2, 5)], "step 5 of model0 is trained after step 2"),
        ([*steps(1, 2, 2)], "step 2 of model0 is trained after step 2"),
        ([*steps(1, 2), back(5)], "back at step 5, but the log goes only up to step 2"),
        ([*steps(1, 2), Rewind("model0", 5)], "goes back to step 5, but the last that was trained is 2"),
        ([*steps(1, 2), Settle("model0", 2), back(1)], "back at step 1, but what steps up to 2 trained was let go"),
        ([*steps(1, 2), announced(2, 2)], "version 2 of model0 comes after version 2"),
    ],
)
def test_a_step_that_follows_on_none_is_found(log: list[Record], problem: str) -> None:
    report = report_of(log)
    assert not report.conserved
    assert any(problem in found for found in report.problems), report.problems
