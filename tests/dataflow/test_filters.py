"""Filters in their configured order, each with its reason."""

import json

import pytest
from pydantic import ValidationError

from astraflow.core.data import Group, Value
from astraflow.core.protocol import messages as m
from astraflow.dataflow.config import BufferConfig
from astraflow.dataflow.filters import FilterRules, make_filters
from astraflow.dataflow.ledger import DropReason
from astraflow.dataflow.policies import Policies, Published
from astraflow.dataflow.scripted import manifest, trajectory
from astraflow.errors import UnknownNameError

RULES = FilterRules(min_tokens=2, max_tokens=3, max_staleness=1)


def policies(step: int = 3, n_samples: int = 2) -> Policies:
    made = Policies({"model0": n_samples})
    for number in range(step + 1):
        current = Published("model0", number, number, "h:1", manifest(number))
        made.replay_announced("model0", number, number, current)
    return made


def group(rewards: tuple[float, ...] = (0.0, 1.0), versions: tuple[int, ...] = (3, 3)) -> Group:
    task = m.Task(task_id="t", group_id=1, data={})
    rows = tuple(trajectory(task, i, Value(reward), versions) for i, reward in enumerate(rewards))
    return Group(group_id=1, task_id="t", prompt_id=7, model_id="model0", trajectories=rows)


def why(group: Group, *names: str, waits: bool = False, rules: FilterRules = RULES, n: int = 2) -> DropReason | None:
    filters = make_filters(names, policies(n_samples=n), rules, lambda g: waits)
    return next((f.reason for f in filters if f.objects(group)), None)


@pytest.mark.parametrize(
    ("made", "names", "reason"),
    [
        (group(), ("filter_zero_adv",), None),
        (group((1.0, 1.0)), ("filter_zero_adv",), DropReason.ZERO_ADVANTAGE),
        (group((1.0, 1.0)), (), None),
        (group((1.0,)), (), DropReason.INVALID),
        (group(versions=(1, 3)), (), DropReason.STALE),
        (group(versions=(2, 3)), (), None),
        (group(versions=(3,)), ("filter_length",), DropReason.LENGTH),
        (group(versions=(3,) * 3), ("filter_length",), None),
        (group(versions=(3,) * 4), ("filter_length",), DropReason.LENGTH),
        (group(versions=(3,) * 4), (), None),
    ],
)
def test_each_filter(made: Group, names: tuple[str, ...], reason: DropReason | None) -> None:
    assert why(made, *names) is reason


def test_the_first_that_objects_gives_the_reason() -> None:
    equal_and_old = group((1.0, 1.0), (1, 1))
    assert why(equal_and_old, "filter_zero_adv") is DropReason.STALE
    assert why(equal_and_old, "filter_zero_adv", "filter_stale") is DropReason.ZERO_ADVANTAGE
    waiting = group((1.0, 1.0), (3, 3))
    assert why(waiting, "filter_duplicate", "filter_zero_adv", waits=True) is DropReason.DUPLICATE
    assert why(waiting, "filter_zero_adv", "filter_duplicate", waits=True) is DropReason.ZERO_ADVANTAGE


def test_a_masked_group_is_too_old_when_its_newest_token_is() -> None:
    masking = FilterRules(max_staleness=1, mask=True)
    assert why(group(versions=(0, 2)), rules=masking) is None
    assert why(group(versions=(0, 1)), rules=masking) is DropReason.STALE


def test_equal_rewards_of_groups_of_one_say_nothing() -> None:
    assert why(group((1.0,)), "filter_zero_adv", n=1) is None


def test_an_unknown_filter_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown filter 'filter_zero', did you mean 'filter_zero_adv'.*known"):
        make_filters(["filter_zero"], policies(), RULES)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ()),
        ("filter_zero_adv", ("filter_zero_adv",)),
        (["filter_duplicate", "filter_invalid"], ("filter_duplicate", "filter_invalid")),
    ],
)
def test_the_key_takes_a_name_a_list_or_nothing(given: object, names: tuple[str, ...]) -> None:
    config = BufferConfig.model_validate_json(json.dumps({"filter_function": given}), strict=True)
    assert config.filter_function == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"filter_function": "filter_length"}, "only together"),
        ({"length": {"max_tokens": 9}}, "only together"),
        ({"filter_function": ["filter_length"], "length": {"min_tokens": 9, "max_tokens": 3}}, "less than min_tokens"),
        ({"filter_function": ["filter_stale", "filter_stale"]}, "named twice"),
        ({"filter_function": ["filter_other"]}, "filter_duplicate"),
        ({"order": "lifo"}, "'fifo' or 'edf'"),
        ({"replay": {"ratio": 0.5}, "max_staleness": 0}, "always too old"),
        ({"count": "samples", "max_groups": 9}, "any number of groups"),
        ({"replay": {"ratio": 1.0}}, "less than 1"),
        ({"replay": {"policy": "oldest"}}, "'uniform', 'newest' or 'reward_spread'"),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BufferConfig.model_validate_json(json.dumps(given), strict=True)
