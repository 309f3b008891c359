"""The audit agrees with a right log, and names what is wrong in any other."""

import pytest

from astraflow.dataflow.audit import Auditor
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

KEY = GroupKey("model0")


def finished(group_id: int, length: int = 5, drop: DropReason | None = None) -> list[Event]:
    return [
        Issue(group_id),
        Lease((group_id,), "a#1", 10.0),
        Finish(group_id, "a#1", (KEY,)),
        Curate(group_id, drop, length),
    ]


def report_of(events: list[Event], most: int = 20):
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
