"""Which trajectories of a step are kept for people to read: a few of each group, a few in all.

Dataflow keeps text, masks, versions and the engine's logprobs of them, the train worker its own logprobs. Both apply
this rule to the same batch, so that the two can be laid side by side without a message between them.

    trajectories/step_000012.jsonl               dataflow
    trajectories/logprobs_000012_model0.jsonl    train worker: one TrainerLogprobs a line
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

PER_STEP = 4
"""Trajectories of each kind, trained and dropped, of one step."""

PER_GROUP = 2


class TrainerLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer's logprobs of one kept trajectory, under the policy before the step's first update."""

    sample_id: int
    """Rows of one episode share it; they keep their order."""
    logprobs: list[float]
    """One a token of the trajectory; 0 where it was not sampled."""


def kept_rows(group_ids: Sequence[int]) -> list[int]:
    """Return the rows to keep of a batch whose rows have these group ids, in order."""
    rows: list[int] = []
    seen: Counter[int] = Counter()
    for row, group_id in enumerate(group_ids):
        if len(rows) == PER_STEP:
            break
        if seen[group_id] < PER_GROUP:
            seen[group_id] += 1
            rows.append(row)
    return rows
