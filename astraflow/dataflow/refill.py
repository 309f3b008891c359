"""What was dropped since a model's last batch was served: why a batch is slow to fill, and when to give up on it.

Dynamic sampling has no end of its own where every group is dropped (a workflow that always rejects, rewards that are
always equal). So the counts by reason are told to whoever waits, and `buffer.max_refill` bounds them. Plain state, fed
with what moves in the ledger.
"""

from __future__ import annotations

from collections import Counter

from astraflow.dataflow.ledger_events import DropReason, Moved, State


class Refill:
    """One model's drops while a batch fills."""

    def __init__(self) -> None:
        self.dropped: Counter[DropReason] = Counter()
        self.ready = 0
        """Groups that became ready meanwhile."""

    def moved(self, moved: Moved) -> None:
        """Account for one transition of the model's groups or of an occurrence."""
        if moved.after is State.SERVED and moved.before is State.READY:
            self.dropped.clear()
            self.ready = 0
        elif moved.after is State.DROPPED and moved.reason is not None:
            self.dropped[moved.reason] += 1
        elif moved.after is State.READY and moved.before is State.DONE:
            self.ready += 1

    @property
    def kept_share(self) -> float:
        """Of the groups that ended since the last batch, the share that is worth training on; 1 where none ended."""
        ended = self.ready + self.dropped.total()
        return self.ready / ended if ended else 1.0

    def describe(self) -> str:
        """In words, by reason."""
        counts = ", ".join(f"{n} {reason.value}" for reason, n in self.dropped.most_common())
        return f"dropped since the last batch: {counts or 'none'}"
