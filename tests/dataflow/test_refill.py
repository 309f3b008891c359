"""What was dropped while a batch fills."""

from astraflow.dataflow.ledger_events import DropReason, Moved, State
from astraflow.dataflow.refill import Refill


def dropped(reason: DropReason) -> Moved:
    return Moved(1, State.DONE, State.DROPPED, "model0", "", reason)


def test_it_counts_by_reason_until_a_batch_is_served() -> None:
    refill = Refill()
    assert (refill.kept_share, refill.describe()) == (1.0, "dropped since the last batch: none")
    for reason in [DropReason.ZERO_ADVANTAGE] * 2 + [DropReason.REJECTED]:
        refill.moved(dropped(reason))
    refill.moved(Moved(2, State.DONE, State.READY, "model0"))
    assert refill.describe() == "dropped since the last batch: 2 zero_advantage, 1 rejected"
    assert refill.kept_share == 0.25
    refill.moved(Moved(9, None, State.SERVED, "model0"))  # a replay
    assert refill.dropped.total() == 3
    refill.moved(Moved(2, State.READY, State.SERVED, "model0"))
    assert (refill.dropped.total(), refill.kept_share) == (0, 1.0)
