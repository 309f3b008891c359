"""Is a finished group worth training on? Filters in a configured order; the first that objects gives the reason.

    filter_invalid     invalid          fewer samples with a reward than min_group_size
    filter_stale       stale            its deciding token is too old already
    filter_length      length           its longest trajectory is shorter or longer than it may be
    filter_duplicate   duplicate        another group of the same prompt waits for a batch
    filter_zero_adv    zero_advantage   all rewards are equal: no gradient; off for groups of one sample

Dynamic sampling is this and admission: a group that is dropped frees its place, so another prompt is sampled for it
until the batch is full of groups that can teach something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from astraflow.core.data import Group
from astraflow.dataflow.ledger import DropReason
from astraflow.dataflow.policies import Policies
from astraflow.dataflow.staleness import deciding_step
from astraflow.errors import UnknownNameError

FIRST = ("filter_invalid", "filter_stale")
"""Applied in any case, before all others where the configuration does not place them."""


@dataclass(frozen=True)
class Filter:
    """One question about a group, and the reason why it is dropped where the answer is yes."""

    reason: DropReason
    objects: Callable[[Group], bool]


@dataclass(frozen=True)
class FilterRules:
    """What the filters go by."""

    min_group_size: int | None = None
    """None: min(2, n_samples)."""
    min_tokens: int = 0
    max_tokens: int | None = None
    """Sampled ones of a group's longest trajectory."""
    max_staleness: int | None = None
    """None: nothing is too old before it is served."""
    mask: bool = False
    """Old tokens leave the loss, so a group is too old when its newest token is."""


def make_filters(
    names: Sequence[str], policies: Policies, rules: FilterRules, waits: Callable[[Group], bool] = lambda group: False
) -> list[Filter]:
    """The filters of these names, in order. waits: does another group of the prompt wait for a batch?

    UnknownNameError names the known ones.
    """

    def invalid(group: Group) -> bool:
        n = policies.get(group.model_id).n_samples
        return len(group.rewards) < (rules.min_group_size or min(2, n))

    def stale(group: Group) -> bool:
        policy = policies.get(group.model_id)
        if rules.max_staleness is None:
            return False
        return deciding_step(group, policy.steps, mask=rules.mask) < policy.step - rules.max_staleness

    def length(group: Group) -> bool:
        return group.length < rules.min_tokens or (rules.max_tokens is not None and group.length > rules.max_tokens)

    def zero_advantage(group: Group) -> bool:
        return policies.get(group.model_id).n_samples > 1 and group.equal_rewards

    known: Mapping[str, Filter] = {
        "filter_invalid": Filter(DropReason.INVALID, invalid),
        "filter_stale": Filter(DropReason.STALE, stale),
        "filter_length": Filter(DropReason.LENGTH, length),
        "filter_duplicate": Filter(DropReason.DUPLICATE, waits),
        "filter_zero_adv": Filter(DropReason.ZERO_ADVANTAGE, zero_advantage),
    }
    for name in names:
        if name not in known:
            raise UnknownNameError("filter", name, list(known))
    return [known[name] for name in (*(name for name in FIRST if name not in names), *names)]
